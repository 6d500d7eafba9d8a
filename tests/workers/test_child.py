"""Every way in which a child can end is told apart, and nothing is left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from workers import child_memory
from workers.child import ChildProcess, ChildSpec, Reply
from workers.child_end import End, Failure, classify_status
from workers.child_memory import HOST_SHARE, limit_bytes
from workers.config import MeasurerConfig
from workers.host import memory_bytes
from workers.host_devices import builder_child, settings

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _handlers_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def spec(**changes):
    return ChildSpec("child_handlers:make", **changes)


def gone(pid, within_s=5.0):
    """True when the process has ended (a zombie nobody reaps counts)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_answers_with_json_and_bytes_and_survives_a_handlers_exception():
    with ChildProcess(spec(environment={"CHILD_TEST": "yes"})) as child:
        payload = bytes(range(256)) * 20_000
        reply = child.request({"do": "echo", "x": [1, None, "ä"]}, payload, timeout_s=20)
        assert isinstance(reply, Reply)
        assert reply.message["got"] == {"do": "echo", "x": [1, None, "ä"]}
        assert reply.message["env"] == "yes"
        assert reply.payload == payload[::-1]
        failure = child.request({"do": "raise"}, timeout_s=20)
        assert failure == Failure(End.ERROR, "bad knob", "ValueError")
        again = child.request({"do": "echo"}, timeout_s=20)
        assert isinstance(again, Reply)
        assert again.message["pid"] == child.pid
    assert gone(child.pid)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"])
def test_a_fatal_signal_of_its_own_is_a_crash(name):
    with ChildProcess(spec()) as child:
        failure = child.request({"do": "signal", "name": name}, timeout_s=20)
        assert isinstance(failure, Failure)
        assert failure.end is End.CRASH
        assert name in failure.message
        assert not child.alive
        after = child.request({"do": "echo"}, timeout_s=5)
        assert isinstance(after, Failure)
        assert after.end is End.CRASH


def test_a_foreign_kill_is_lost_and_an_exit_is_a_crash_with_its_last_words():
    with ChildProcess(spec()) as child:
        failure = child.request({"do": "signal", "name": "SIGKILL"}, timeout_s=20)
        assert isinstance(failure, Failure)
        assert failure.end is End.LOST
    with ChildProcess(spec()) as child:
        failure = child.request({"do": "exit"}, timeout_s=20)
        assert failure == Failure(End.CRASH, "exited with status 3: cannot go on")


def test_a_hang_is_a_timeout_and_its_own_children_go_too(tmp_path):
    with ChildProcess(spec()) as child:
        assert child.wait_ready() is None
        failure = child.request({"do": "hang", "note": str(tmp_path / "pid")}, timeout_s=1.0)
        assert failure == Failure(End.TIMEOUT, "took longer than 1 s")
        assert gone(int((tmp_path / "pid").read_text()))


def test_a_real_child_may_use_four_fifths_of_its_host(tmp_path, monkeypatch):
    config = MeasurerConfig(tmp_path, tmp_path, tmp_path)
    for child in (
        settings("cpu:here", config).child,
        builder_child(config),
    ):
        assert child.memory_limit_bytes == HOST_SHARE
    explicit = dataclasses.replace(config, child_memory_bytes=3 << 30)
    assert settings("cpu:here", explicit).child.memory_limit_bytes == 3 << 30

    assert limit_bytes(HOST_SHARE) == int(0.8 * memory_bytes())
    monkeypatch.setattr(child_memory, "memory_bytes", lambda: 320 << 20)
    with ChildProcess(spec(memory_limit_bytes=HOST_SHARE)) as child:
        failure = child.request({"do": "allocate"}, timeout_s=60)
        assert isinstance(failure, Failure)
        assert failure.end is End.OUT_OF_MEMORY
        assert "the limit is 256 MiB" in failure.message


def test_too_much_memory_is_told_apart():
    with ChildProcess(spec(memory_limit_bytes=256 << 20)) as child:
        failure = child.request({"do": "allocate"}, timeout_s=60)
        assert isinstance(failure, Failure)
        assert failure.end is End.OUT_OF_MEMORY
        assert "256 MiB" in failure.message
    with ChildProcess(spec()) as child:
        failure = child.request({"do": "memory_error"}, timeout_s=20)
        assert failure == Failure(End.OUT_OF_MEMORY, "no room")
        assert not child.alive
    aborted = classify_status(-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'")
    assert aborted.end is End.OUT_OF_MEMORY


def test_kill_from_another_thread_cancels():
    with ChildProcess(spec()) as child:
        assert child.wait_ready() is None
        timer = threading.Timer(0.3, child.kill)
        timer.start()
        failure = child.request({"do": "hang", "note": os.devnull}, timeout_s=60)
        timer.join()
        assert failure == Failure(End.CANCELLED, "cancelled")


def test_a_child_that_cannot_start_says_why():
    with ChildProcess(spec(arguments={"fail": True})) as child:
        assert child.wait_ready() == Failure(End.ERROR, "cannot start", "RuntimeError")
        assert not child.alive
    with ChildProcess(ChildSpec("no_such_module:make")) as child:
        failure = child.wait_ready()
        assert isinstance(failure, Failure)
        assert failure.error_type == "ModuleNotFoundError"


def test_the_child_dies_with_its_supervisor(tmp_path):
    note = tmp_path / "pids"
    program = (
        f"import sys; sys.path[:] = {[str(HERE), *sys.path]!r}\n"
        "from workers.child import ChildProcess, ChildSpec\n"
        "child = ChildProcess(ChildSpec('child_handlers:make'))\n"
        "assert child.wait_ready() is None\n"
        "print(child.pid, flush=True)\n"
        f"child.request({{'do': 'hang', 'note': {str(note)!r}}}, timeout_s=300)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        deadline = time.monotonic() + 10
        while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        supervisor.kill()
        supervisor.communicate()
    assert gone(child)
    assert gone(int(note.read_text()))
