"""Handlers that misbehave on request, for test_child."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping


def make(arguments: Mapping[str, object]):
    if arguments.get("fail"):
        raise RuntimeError("cannot start")
    hoard = []

    def handle(message: Mapping[str, object], payload: bytes) -> tuple[Mapping[str, object], bytes]:
        do = message["do"]
        if do == "echo":
            return {"pid": os.getpid(), "env": os.environ.get("CHILD_TEST", ""), "got": message}, payload[::-1]
        if do == "raise":
            raise ValueError("bad knob")
        if do == "memory_error":
            raise MemoryError("no room")
        if do == "hang":
            sleeper = subprocess.Popen(["sleep", "600"])
            with open(str(message["note"]), "w") as file:
                file.write(str(sleeper.pid))
            time.sleep(600)
        if do == "signal":
            os.kill(os.getpid(), signal.Signals[str(message["name"])])
            time.sleep(60)
        if do == "exit":
            os.write(2, b"cannot go on\n")
            os._exit(3)
        if do == "allocate":
            while True:
                hoard.append(bytearray(os.urandom(1) * (32 << 20)))
                time.sleep(0.01)
        raise AssertionError(do)

    return handle


def killed_at_start(arguments: Mapping[str, object]):
    """Notes that it started, then is killed from outside before it is ready."""
    with open(str(arguments["note"]), "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
