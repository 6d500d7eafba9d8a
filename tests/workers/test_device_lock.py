"""Who may use a device: sessions of one process in order, processes of one host apart."""

import subprocess
import sys
from pathlib import Path

from workers.device_lock import HOLDER_TTL_S, WAITER_TTL_S, DeviceLease, HostLock


def test_two_locks_of_one_device_exclude_each_other(tmp_path: Path) -> None:
    first, second, other = (HostLock(tmp_path, d) for d in ("gpu-1", "gpu-1", "gpu-2"))
    assert first.try_acquire()
    assert not second.try_acquire()
    assert other.try_acquire()
    first.release()
    assert second.try_acquire()
    for lock in (first, second, other):
        lock.close()


def test_who_waits_goes_before_who_comes_back(tmp_path: Path) -> None:
    first, second = HostLock(tmp_path, "gpu"), HostLock(tmp_path, "gpu")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert not first.try_acquire()
    assert second.try_acquire()
    second.release()
    assert first.try_acquire()
    first.close()
    second.close()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from workers.device_lock import HostLock;"
        f"lock = HostLock(Path({str(tmp_path)!r}), 'gpu'); "
        "print(lock.try_acquire(), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True", -9)
    lock = HostLock(tmp_path, "gpu")
    assert lock.try_acquire()
    lock.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sessions_are_served_in_order(tmp_path: Path) -> None:
    lease = DeviceLease(HostLock(tmp_path, "cpu"), Clock())
    assert lease.try_acquire("a")
    assert not lease.try_acquire("b")
    assert not lease.try_acquire("c")
    lease.release("a")
    assert not lease.try_acquire("c")
    assert not lease.try_acquire("a")
    assert lease.try_acquire("b")
    assert lease.holder == "b"


def test_a_waiter_that_fell_silent_loses_its_place(tmp_path: Path) -> None:
    clock = Clock()
    lease = DeviceLease(HostLock(tmp_path, "cpu"), clock)
    assert lease.try_acquire("a")
    assert not lease.try_acquire("b")
    clock.now = WAITER_TTL_S + 1.0
    lease.release("a")
    assert lease.try_acquire("c")


def test_a_holder_that_fell_silent_loses_the_device_unless_it_measures(tmp_path: Path) -> None:
    clock = Clock()
    lease = DeviceLease(HostLock(tmp_path, "cpu"), clock)
    assert lease.try_acquire("a")
    clock.now = HOLDER_TTL_S + 1.0
    assert not lease.try_acquire("b", busy=True)
    assert lease.try_acquire("b", busy=False)
    assert not lease.renew("a")
    assert lease.renew("b")
