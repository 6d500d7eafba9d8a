"""A child at work and a warm spare that takes over at once when it dies (the imports of a child cost seconds)."""

import threading

from tuner.ports import TaskRefused
from workers.child import ChildProcess, ChildSpec
from workers.child_end import End


class ChildFailedToStart(TaskRefused):
    """The child's own imports or set-up failed: nobody's candidate is at fault, and another child would fail too.
    `end` says how: LOST or CANCELLED when it was killed before it was ready."""

    def __init__(self, message: str, end: End = End.ERROR) -> None:
        super().__init__(message)
        self.end = end


class SparedChild:
    """`active` is for one thread at a time; `kill` may come from any."""

    def __init__(self, spec: ChildSpec, spare: bool = True) -> None:
        self._spec = spec
        self._wants_spare = spare
        self._guard = threading.Lock()
        self._active: ChildProcess | None = None
        self._spare: ChildProcess | None = None
        self.generation = 0  # counts the children that were ever active, so that a holder knows its state is gone

    def active(self) -> ChildProcess:
        """The child that takes requests; a dead one is replaced, one that was killed while it started once more.
        Raises ChildFailedToStart."""
        child = self._living()
        failure = child.wait_ready()
        if failure is not None and failure.end is End.LOST:
            child = self._living()
            failure = child.wait_ready()
        if failure is not None:
            raise ChildFailedToStart(failure.message, failure.end)
        return child

    def _living(self) -> ChildProcess:
        with self._guard:
            if self._active is None or not self._active.alive:
                if self._active is not None:
                    self._active.close()
                self._active = self._take_spare() or ChildProcess(self._spec)
                self.generation += 1
            return self._active

    def prepare(self, wait: bool) -> None:
        """Start a spare if there is none. `wait`: until its imports are done, where they would disturb a timing."""
        if not self._wants_spare:
            return
        with self._guard:
            if self._spare is None or not self._spare.alive:
                if self._spare is not None:
                    self._spare.close()
                self._spare = ChildProcess(self._spec)
            spare = self._spare
        if wait:
            spare.wait_ready()

    def kill(self) -> None:
        """End the active child; the spare stays. A running request returns CANCELLED."""
        with self._guard:
            if self._active is not None:
                self._active.kill()

    @property
    def pid(self) -> int | None:
        return self._active.pid if self._active is not None and self._active.alive else None

    def close(self) -> None:
        with self._guard:
            for child in (self._active, self._spare):
                if child is not None:
                    child.close()
            self._active = self._spare = None

    def _take_spare(self) -> ChildProcess | None:
        spare, self._spare = self._spare, None
        if spare is not None and not spare.alive:
            spare.close()
            return None
        return spare
