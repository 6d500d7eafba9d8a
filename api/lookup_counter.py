"""Counts of lookups, gathered in memory and stored once in a while, so that answering never waits for a write."""

import logging
import threading
from collections import Counter
from collections.abc import Callable

from search_space.target import TargetQuery
from search_space.workload import Workload
from tuner.views import ServiceStore

log = logging.getLogger(__name__)

MAX_PENDING = 4096


class LookupCounter:
    """Thread-safe. What was counted since the last flush is lost when the process is killed."""

    def __init__(self, store: ServiceStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._pending: Counter[tuple[Workload, TargetQuery, str]] = Counter()

    def count(self, workload: Workload, target: TargetQuery, status: str) -> None:
        with self._lock:
            self._pending[workload, target, status] += 1
            full = len(self._pending) >= MAX_PENDING
        if full:
            self.flush()

    def flush(self) -> None:
        """Store what is pending; what could not be stored is kept for the next time, and the error raised."""
        with self._lock:
            taken, self._pending = self._pending, Counter()
        now = self._now()
        try:
            while taken:
                (workload, target, status), count = next(iter(taken.items()))
                self._store.count_lookup(workload, target, status, now, count)
                del taken[workload, target, status]
        finally:
            if taken:
                with self._lock:
                    self._pending.update(taken)
