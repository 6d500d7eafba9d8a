"""Keeps a lease alive while the runner works, and hears what users want of the job meanwhile."""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tuner.job import JobState
from tuner.ports import Lease, LeaseLost, RunnerStore

log = logging.getLogger("tilewright.runner")


class LeaseKeeper:
    """A thread that renews the lease three times within its length, and lets the job go when another one's turn has
    come: `gives_way` asks the store for that, and is True once the job is back in the queue.

    `wanted` is the state that users want (PAUSED, CANCELLED: stop now); `lost` is set when another runner holds the
    job, or when the store could not be reached for a whole lease: then nothing more may be committed.
    """

    def __init__(
        self, store: RunnerStore, lease: Lease, lease_s: float, gives_way: Callable[[], bool] = lambda: False
    ) -> None:
        self._gives_way = gives_way
        self._store, self._lease, self._lease_s = store, lease, lease_s
        self._wanted = JobState.RUNNING
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    @property
    def wanted(self) -> JobState:
        return self._wanted

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @property
    def must_stop(self) -> bool:
        return self.lost or self._wanted is not JobState.RUNNING

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        # Often enough that a cancel is heard within a second, whatever the lease's length.
        period, renewed = min(1.0, self._lease_s / 3.0), time.monotonic()
        while not self._stop.wait(period):
            try:
                self._wanted = self._store.renew(self._lease, self._lease_s)
                renewed = time.monotonic()
                if self._wanted is JobState.RUNNING and self._gives_way():
                    log.info("job %s: another one's turn has come", self._lease.job_id)
                    self._wanted = JobState.QUEUED
                    return
            except LeaseLost:
                self._lost.set()
                return
            except Exception as fault:  # noqa: BLE001  the database may be away for a moment
                missed_s = time.monotonic() - renewed  # a call to a database that is away may take long by itself
                log.warning("lease of %s not renewed for %.0f s: %s", self._lease.job_id, missed_s, fault)
                if missed_s >= self._lease_s:
                    self._lost.set()
                    return
