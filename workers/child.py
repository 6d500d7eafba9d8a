"""A killable child process that answers requests: who supervises it, and how its end is classified.

The child is its own session, so that one signal reaches it and whatever it started. Its end of a lifeline pipe sends
SIGIO to that whole group when the supervisor dies, even while the child hangs in native code. Frames on the socket
are a 12 byte header (length of the JSON, length of the payload), the JSON, the payload.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from workers.child_end import End, Failure, classify_status
from workers.child_memory import group_resident_bytes, limit_bytes

HEADER = struct.Struct("<IQ")
_TICK_S = 0.05  # how often memory is looked at while a request runs
_STDERR_CHARS = 2000
_EXIT_WAIT_S = 5.0
_BOOT = "import sys; sys.path[:] = {path!r}; from workers.child_entry import main; main({fd}, {life}, {entry!r})"


@dataclass(frozen=True)
class Reply:
    """What the handler returned."""

    message: Mapping[str, object]
    payload: bytes = b""


@dataclass(frozen=True)
class ChildSpec:
    """What to start. `entry` is ``module:factory``; factory(arguments) makes the handler, (message, payload) ->
    (message, payload), and does the slow imports. `environment` is set before anything else is imported."""

    entry: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_limit_bytes: int = 0  # resident memory of the child and its own children; 0: none; or HOST_SHARE
    start_timeout_s: float = 120.0


class ChildProcess:
    """One supervised child. `request` is for one thread at a time; `kill` may come from any thread.

    After any Failure but ERROR the child is dead and `alive` is False: make a new one. Starting does not wait for the
    child's imports; the first request does (the start limit is added to its own).
    """

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._memory_limit = limit_bytes(spec.memory_limit_bytes)
        self._lock = threading.Lock()
        self._ready = False
        self._ended_by: End | None = None
        self._status: int | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._said_before = 0  # bytes on stderr before the present request
        self._socket, theirs = socket.socketpair()
        life_read, self._lifeline = os.pipe()
        try:
            self._process = self._spawn(theirs, life_read)
        finally:
            theirs.close()
            os.close(life_read)
        start = {"arguments": dict(spec.arguments), "environment": dict(spec.environment)}
        self._send_quietly(start, b"")

    def _spawn(self, theirs: socket.socket, life_read: int) -> subprocess.Popen[bytes]:
        boot = _BOOT.format(path=list(sys.path), fd=theirs.fileno(), life=life_read, entry=self.spec.entry)
        return subprocess.Popen(
            [sys.executable, "-c", boot],
            pass_fds=(theirs.fileno(), life_read),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._status is None and not self._has_exited()

    def wait_ready(self, timeout_s: float | None = None) -> Failure | None:
        """Wait for the child's imports; None when it can take requests."""
        if self._ready:
            return None
        limit = self.spec.start_timeout_s if timeout_s is None else timeout_s
        answer = self._receive(limit, f"did not start within {limit:g} s")
        if isinstance(answer, Failure):
            return answer
        self._ready = True
        return None

    def request(self, message: Mapping[str, object], payload: bytes = b"", *, timeout_s: float) -> Reply | Failure:
        """Ask and wait. Never raises for what the child does; json errors of `message` are the caller's."""
        failure = self.wait_ready()
        if failure is not None:
            return failure
        if self._status is not None:
            return self._classify()
        self._said_before = os.fstat(self._stderr.fileno()).st_size
        self._send_quietly(message, payload)
        return self._receive(timeout_s, f"took longer than {timeout_s:g} s")

    def kill(self) -> None:
        """End the child and everything in its session now; a running request returns CANCELLED. Idempotent."""
        self._end(End.CANCELLED)

    def close(self) -> None:
        """Kill and give back pipes. Idempotent. The child keeps nothing that a soft end would save."""
        self.kill()
        with self._lock:
            self._socket.close()
            self._stderr.close()
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the supervisor's half of the pipe ---

    def _send_quietly(self, message: Mapping[str, object], payload: bytes) -> None:
        """A child that died before reading shows itself in _receive."""
        body = json.dumps(message).encode()
        try:
            self._socket.settimeout(_EXIT_WAIT_S + len(payload) / 1e7)
            self._socket.sendall(HEADER.pack(len(body), len(payload)) + body)
            self._socket.sendall(payload)
        except OSError:
            return

    def _receive(self, timeout_s: float, late: str) -> Reply | Failure:
        deadline = time.monotonic() + timeout_s
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self._socket, selectors.EVENT_READ)
            except (ValueError, OSError):
                return self._classify()
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return self._end_with(End.TIMEOUT, late)
                if selector.select(min(left, _TICK_S)):
                    chunk = self._read_some()
                    if not chunk:
                        return self._classify()
                    data += chunk
                    if (answer := _parse(data)) is not None:
                        return self._judge(*answer)
                elif (over := self._over_memory()) is not None:
                    return self._end_with(End.OUT_OF_MEMORY, over)

    def _read_some(self) -> bytes:
        try:
            return self._socket.recv(1 << 20)
        except OSError:
            return b""

    def _judge(self, message: dict[str, object], payload: bytes) -> Reply | Failure:
        error = message.get("error")
        if not isinstance(error, dict):
            return Reply(message, payload)
        kind, text = str(error["type"]), str(error["message"])
        if kind == "MemoryError":
            return self._end_with(End.OUT_OF_MEMORY, text or "an allocation failed")
        if not self._ready:
            return self._end_with(End.ERROR, text, kind)
        return Failure(End.ERROR, text, kind)

    def _over_memory(self) -> str | None:
        limit = self._memory_limit
        if not limit:
            return None
        used = group_resident_bytes(self.pid)
        if used <= limit:
            return None
        return f"used {used >> 20} MiB of resident memory, the limit is {limit >> 20} MiB"

    # --- its end ---

    def _has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def _end_with(self, end: End, message: str, error_type: str = "") -> Failure:
        self._end(end)
        if self._ended_by is End.CANCELLED:
            return Failure(End.CANCELLED, "cancelled")
        return Failure(end, message, error_type)

    def _end(self, end: End) -> None:
        """Signal the group while the leader's pid is still ours (running, or a zombie), then reap it."""
        with self._lock:
            if self._status is not None:
                return
            if not self._has_exited():
                self._ended_by = end
            with contextlib.suppress(ProcessLookupError):  # everything in it is gone already
                os.killpg(self.pid, signal.SIGKILL)
            self._status = self._process.wait()

    def _classify(self) -> Failure:
        """The socket closed: why did the child end?"""
        deadline = time.monotonic() + _EXIT_WAIT_S
        while self._status is None and not self._has_exited():
            if time.monotonic() > deadline:
                return self._end_with(End.CRASH, "closed its pipe and hung")
            time.sleep(0.005)
        self._end(End.CRASH)
        if self._ended_by is End.CANCELLED:
            return Failure(End.CANCELLED, "cancelled")
        assert self._status is not None
        return classify_status(self._status, self._last_words())

    def _last_words(self) -> str:
        try:
            size = os.fstat(self._stderr.fileno()).st_size
            first = max(self._said_before, size - _STDERR_CHARS)
            raw = os.pread(self._stderr.fileno(), _STDERR_CHARS, first)
        except (ValueError, OSError):
            return ""
        return raw.decode(errors="replace").strip()


def _parse(data: bytearray) -> tuple[dict[str, object], bytes] | None:
    if len(data) < HEADER.size:
        return None
    length, extra = HEADER.unpack_from(data)
    if len(data) < HEADER.size + length + extra:
        return None
    body = HEADER.size + length
    message: dict[str, object] = json.loads(bytes(data[HEADER.size : body]))
    return message, bytes(data[body : body + extra])
