"""One measurement at a time on a device: among the sessions of this process, and among all processes of the host."""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

# A session that asked for the device and then fell silent gives up its place in the queue, or the device itself.
WAITER_TTL_S = 5.0
HOLDER_TTL_S = 20.0


class HostLock:
    """An exclusive flock on a file named after the device, tried and never waited for.

    Two files, so that a process that releases and tries again at once cannot starve one that waits: the device's, and
    a turnstile that the next in line holds while it waits. The kernel drops both when the process dies.
    """

    def __init__(self, folder: Path, device_id: str) -> None:
        _make_shared(folder)
        name = hashlib.sha256(device_id.encode()).hexdigest()[:16]
        self._turnstile = _open(folder / f"{name}.next")
        self._device = _open(folder / f"{name}.lock")
        self._next = False
        self.held = False

    def try_acquire(self) -> bool:
        if self.held:
            return True
        if not self._next and not _try_flock(self._turnstile):
            return False
        self._next = True
        if not _try_flock(self._device):
            return False
        self.leave_queue()
        self.held = True
        return True

    def leave_queue(self) -> None:
        if self._next:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
            self._next = False

    def release(self) -> None:
        if self.held:
            fcntl.flock(self._device, fcntl.LOCK_UN)
            self.held = False

    def close(self) -> None:
        self.leave_queue()
        self.release()
        os.close(self._turnstile)
        os.close(self._device)


def _make_shared(folder: Path) -> None:
    """A folder in which every user of the host may lock, and none may delete another's file."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o1777)


def _open(path: Path) -> int:
    # Creating comes second: Linux refuses O_CREAT on another user's file in a sticky folder (fs.protected_regular).
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if os.fstat(descriptor).st_uid == os.getuid():
        os.fchmod(descriptor, 0o666)  # another user's measurements must be kept apart too, whatever our umask
    return descriptor


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DeviceLease:
    """Which session may use the device; first come, first served. The caller serialises the calls."""

    def __init__(
        self, lock: HostLock, clock: Callable[[], float] = time.monotonic, holder_ttl_s: float = HOLDER_TTL_S
    ) -> None:
        self._lock = lock
        self._holder_ttl_s = holder_ttl_s
        self._clock = clock
        self._queue: dict[str, float] = {}  # session -> when it last asked; insertion order is the order of service
        self._seen = 0.0
        self.holder: str | None = None

    def try_acquire(self, session: str, busy: bool = False) -> bool:
        """True when `session` holds the device now. `busy`: the present holder is measuring at this moment."""
        now = self._clock()
        if self.holder == session:
            self._seen = now
            return True
        self._queue[session] = now
        self._expire(now, busy)
        if self.holder is not None or next(iter(self._queue)) != session or not self._lock.try_acquire():
            return False
        del self._queue[session]
        self.holder, self._seen = session, now
        return True

    @property
    def wanted(self) -> bool:
        """Somebody asked for the device lately and did not get it."""
        now = self._clock()
        return any(now - asked <= WAITER_TTL_S for asked in self._queue.values())

    def renew(self, session: str) -> bool:
        """False when the session lost the device (it was silent for too long)."""
        if self.holder != session:
            return False
        self._seen = self._clock()
        return True

    def release(self, session: str) -> None:
        """Give the device, or the place in the queue, back. Idempotent."""
        self._queue.pop(session, None)
        if self.holder == session:
            self.holder = None
            self._lock.release()
        if not self._queue:
            self._lock.leave_queue()

    def _expire(self, now: float, busy: bool) -> None:
        for session in [s for s, asked in self._queue.items() if now - asked > WAITER_TTL_S]:
            del self._queue[session]
        if self.holder is not None and not busy and now - self._seen > self._holder_ttl_s:
            self.release(self.holder)
