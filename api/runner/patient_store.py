"""The store as a job sees it: a database that is away for a moment costs that moment, not the batch."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tuner.best import BestConfig
from tuner.job import JobState, StopReason
from tuner.measurement import Measurement
from tuner.ports import DeviceInfo, Lease, Measured, Progress, RunnerStore, StoreUnavailable, Trial
from tuner.task import Task, TuningRecord

log = logging.getLogger("tilewright.runner")

T = TypeVar("T")
AGAIN_S = 0.5


class PatientStore:
    """See tuner.ports.RunnerStore. Repeats what may be stored twice without harm, until it works or `give_up` says that
    the lease is gone: a commit whose answer was lost changes nothing the second time.

    Not `reserve` and `promote`: of a reservation whose answer was lost nobody knows the trials, so the job is given
    back, and its next claim hands them out.
    """

    def __init__(self, inner: RunnerStore, give_up: Callable[[], bool]) -> None:
        self._inner, self._give_up = inner, give_up

    def _patiently(self, call: Callable[[], T]) -> T:
        told = False
        while True:
            try:
                return call()
            except StoreUnavailable as fault:
                if self._give_up():
                    raise
                if not told:
                    log.warning("the database is away, trying again: %s", fault)
                told = True
                time.sleep(AGAIN_S)

    def claim(
        self,
        runner_id: str,
        kinds: Sequence[str],
        lease_s: float,
        only: str | None = None,
        targets: Sequence[Target] = (),
    ) -> Lease | None:
        return self._inner.claim(runner_id, kinds, lease_s, only, targets)

    def renew(self, lease: Lease, lease_s: float) -> JobState:
        return self._inner.renew(lease, lease_s)

    def bind(self, lease: Lease, task_id: int, task: Task) -> None:
        self._patiently(lambda: self._inner.bind(lease, task_id, task))

    def records(self, lease: Lease, task_id: int) -> Sequence[TuningRecord]:
        return self._patiently(lambda: self._inner.records(lease, task_id))

    def related_records(self, task: Task, limit: int) -> Sequence[TuningRecord]:
        return self._patiently(lambda: self._inner.related_records(task, limit))

    def incumbent(self, task: Task, identity: EnvironmentIdentity) -> tuple[Candidate, str] | None:
        return self._patiently(lambda: self._inner.incumbent(task, identity))

    def reserve(
        self, lease: Lease, task_id: int, candidates: Sequence[tuple[Candidate, float | None]]
    ) -> Sequence[Trial]:
        return self._inner.reserve(lease, task_id, candidates)

    def retry(self, lease: Lease, trial: Trial) -> Trial:
        return self._patiently(lambda: self._inner.retry(lease, trial))

    def commit(self, lease: Lease, task_id: int, measured: Measured) -> None:
        self._patiently(lambda: self._inner.commit(lease, task_id, measured))

    def set_baseline(self, lease: Lease, task_id: int, name: str, measurement: Measurement) -> None:
        self._patiently(lambda: self._inner.set_baseline(lease, task_id, name, measurement))

    def promote(
        self, lease: Lease, task_id: int, best: BestConfig, artifact: bytes, beaten: Candidate | None = None
    ) -> str:
        return self._inner.promote(lease, task_id, best, artifact, beaten)

    def report(self, lease: Lease, progress: Progress) -> None:
        self._patiently(lambda: self._inner.report(lease, progress))

    def finish_task(self, lease: Lease, task_id: int, reason: StopReason) -> None:
        self._patiently(lambda: self._inner.finish_task(lease, task_id, reason))

    def finish_job(self, lease: Lease, state: JobState, reason: StopReason | None, error: str | None) -> None:
        self._patiently(lambda: self._inner.finish_job(lease, state, reason, error))

    def release(self, lease: Lease) -> None:
        self._inner.release(lease)

    def yield_job(self, lease: Lease, kinds: Sequence[str], slice_s: float, targets: Sequence[Target] = ()) -> bool:
        return self._inner.yield_job(lease, kinds, slice_s, targets)

    def save_model(self, op: str, target_kind: str, blob: bytes, feature_version: str) -> None:
        self._patiently(lambda: self._inner.save_model(op, target_kind, blob, feature_version))

    def load_model(self, op: str, target_kind: str) -> tuple[bytes, str] | None:
        return self._patiently(lambda: self._inner.load_model(op, target_kind))

    def heartbeat_devices(self, runner_id: str, devices: Sequence[DeviceInfo], ttl_s: float) -> None:
        self._inner.heartbeat_devices(runner_id, devices, ttl_s)
