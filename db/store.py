"""`SqlStore`: both halves of the store over one database. Each method is one transaction; the work is done by the
functions of the module that is named after the noun."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from db import (
    blobs,
    bulk,
    jobs,
    keys,
    leases,
    lookup,
    lookups,
    records,
    retention,
    schedules,
    staleness,
    tallies,
    travel,
    trial_views,
    trials,
)
from db import devices as device_rows
from db import events as job_events
from db.engine import Transactions
from db.schema import check_revision, touch_revision
from db.sketch_versions import SketchVersion
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target, TargetQuery
from search_space.workload import Workload
from tuner.access import KeyLimits, KeyView, Owner, Scope
from tuner.best import BestConfig
from tuner.job import JobSpec, JobState, StopReason
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Lease, Measured, Progress, RunnerStore, Trial
from tuner.task import Task, TuningRecord
from tuner.views import (
    DeviceView,
    Event,
    JobView,
    Keep,
    Lookup,
    LookupCount,
    NotFound,
    Page,
    ProgressPoint,
    Removed,
    ScheduleView,
    ServiceStore,
    StaleView,
    StoreCounts,
    TrialView,
)

log = logging.getLogger("tilewright.store")


class SqlStore:
    """`tuner.ports.RunnerStore` and `tuner.views.ServiceStore`, whose docstrings are the contract.

    Thread-safe; may be opened by any number of processes. Besides the errors named there: StoreUnavailable (locked,
    full or out of reach: try again later), StoreDamaged and SchemaMismatch (a person has to act).
    """

    def __init__(self, transactions: Transactions, artifacts: blobs.ArtifactStore, version: SketchVersion) -> None:
        self._tx = transactions
        self._artifacts = artifacts
        self._version = version
        self._tally = tallies.Accumulator()

    def close(self) -> None:
        self._tx.engine.dispose()

    def _now(self, session: Session) -> float:
        return self._tx.now(session)

    # --- a runner's half ---------------------------------------------------------------------------------------

    def claim(
        self,
        runner_id: str,
        kinds: Sequence[str],
        lease_s: float,
        only: str | None = None,
        targets: Sequence[Target] = (),
    ) -> Lease | None:
        return self._tx.write(lambda s: leases.claim(s, runner_id, kinds, lease_s, self._now(s), only, targets))

    def renew(self, lease: Lease, lease_s: float) -> JobState:
        return self._tx.write(lambda s: leases.renew(s, lease, lease_s, self._now(s)))

    def bind(self, lease: Lease, task_id: int, task: Task) -> None:
        self._tx.write(lambda s: records.bind(s, lease, task_id, task))

    def records(self, lease: Lease, task_id: int) -> Sequence[TuningRecord]:
        return self._tx.read(lambda s: records.of_task(s, lease, task_id))

    def related_records(self, task: Task, limit: int) -> Sequence[TuningRecord]:
        return self._tx.read(lambda s: records.related(s, task, limit))

    def incumbent(self, task: Task, identity: EnvironmentIdentity) -> tuple[Candidate, str] | None:
        return self._tx.read(lambda s: schedules.incumbent(s, self._version, task, identity))

    def reserve(
        self, lease: Lease, task_id: int, candidates: Sequence[tuple[Candidate, float | None]]
    ) -> Sequence[Trial]:
        return self._tx.write(lambda s: trials.reserve(s, lease, task_id, candidates, self._now(s)))

    def retry(self, lease: Lease, trial: Trial) -> Trial:
        return self._tx.write(lambda s: trials.retry(s, lease, trial, self._now(s)))

    def commit(self, lease: Lease, task_id: int, measured: Measured) -> None:
        self._tx.write(lambda s: trials.commit(s, lease, task_id, measured, self._now(s)))
        self._tally.measured(measured.measurement)
        told = {"job": lease.job_id, "trial": measured.trial.id, "outcome": measured.measurement.outcome.value}
        log.info("trial %d: %s", measured.trial.id, told["outcome"], extra=told)

    def set_baseline(self, lease: Lease, task_id: int, name: str, measurement: Measurement) -> None:
        self._tx.write(lambda s: records.set_baseline(s, lease, task_id, name, measurement, self._now(s)))

    def promote(
        self, lease: Lease, task_id: int, best: BestConfig, artifact: bytes, beaten: Candidate | None = None
    ) -> str:
        promoted = schedules.Promoted(best, artifact, beaten)
        return self._tx.write(
            lambda s: schedules.promote(s, self._artifacts, self._version, lease, task_id, promoted, self._now(s))
        )

    def report(self, lease: Lease, progress: Progress) -> None:
        self._tx.write(lambda s: records.report(s, lease, progress, self._now(s)))

    def finish_task(self, lease: Lease, task_id: int, reason: StopReason) -> None:
        self._tx.write(lambda s: leases.finish_task(s, lease, task_id, reason, self._now(s)))

    def finish_job(self, lease: Lease, state: JobState, reason: StopReason | None, error: str | None) -> None:
        self._tx.write(lambda s: leases.finish_job(s, lease, state, reason, error, self._now(s)))

    def release(self, lease: Lease) -> None:
        self._tx.write(lambda s: leases.release(s, lease, self._now(s)))

    def yield_job(self, lease: Lease, kinds: Sequence[str], slice_s: float, targets: Sequence[Target] = ()) -> bool:
        return self._tx.write(lambda s: leases.yield_job(s, lease, kinds, slice_s, self._now(s), targets))

    def save_model(self, op: str, target_kind: str, blob: bytes, feature_version: str) -> None:
        self._tx.write(lambda s: blobs.save_model(s, op, target_kind, blob, feature_version, self._now(s)))

    def load_model(self, op: str, target_kind: str) -> tuple[bytes, str] | None:
        return self._tx.read(lambda s: blobs.load_model(s, op, target_kind))

    def heartbeat_devices(self, runner_id: str, devices: Sequence[DeviceInfo], ttl_s: float) -> None:
        with self._tally.taken() as amounts:
            self._tx.write(lambda s: device_rows.heartbeat(s, runner_id, devices, ttl_s, self._now(s), amounts))

    # --- the service's half ------------------------------------------------------------------------------------

    def create_job(
        self, spec: JobSpec, idempotency_key: str | None, now: float, owner: Owner | None = None
    ) -> tuple[JobView, bool]:
        return self._tx.write(lambda s: jobs.create(s, spec, idempotency_key, now, owner))

    def job(self, job_id: str) -> JobView:
        return self._tx.read(lambda s: jobs.view(s, job_id))

    def jobs(self, state: JobState | None, limit: int, cursor: str | None) -> Page[JobView]:
        return self._tx.read(lambda s: jobs.page(s, state, limit, cursor))

    def cancel(self, job_id: str, now: float) -> JobView:
        return self._tx.write(lambda s: jobs.cancel(s, job_id, now))

    def pause(self, job_id: str, now: float) -> JobView:
        return self._tx.write(lambda s: jobs.pause(s, job_id, now))

    def resume(self, job_id: str, now: float) -> JobView:
        return self._tx.write(lambda s: jobs.resume(s, job_id, now))

    def remove_job(self, job_id: str, keep: Keep, now: float) -> Removed:
        return self._tx.write(lambda s: retention.remove(s, job_id, keep, now)).removed

    def prune(self, before: float, keep: Keep, limit: int, now: float) -> Sequence[Removed]:
        ids = self._tx.read(lambda s: s.scalars(retention.ended_query(before, limit)).all())
        out = []
        for job_id in ids:
            with contextlib.suppress(NotFound):  # another process of the service was quicker
                out.append(self.remove_job(job_id, keep, now))
        return out

    def interrupt_expired(self) -> int:
        """Mark jobs whose runner was not heard of in time as interrupted; how many. Claiming does the same: this is
        for a service whose runners are all gone, so that no job looks running for ever."""
        return self._tx.write(lambda s: leases.interrupt_expired(s, self._now(s)))

    def trials(
        self,
        job_id: str,
        task_index: int | None,
        outcome: Outcome | None,
        limit: int,
        cursor: str | None,
        newest_first: bool = False,
    ) -> Page[TrialView]:
        return self._tx.read(lambda s: trial_views.page(s, job_id, task_index, outcome, limit, cursor, newest_first))

    def trial(self, trial_id: int) -> tuple[TrialView, Workload, Target]:
        return self._tx.read(lambda s: trial_views.single(s, trial_id))

    def progress(self, job_id: str, task_index: int, points: int) -> Sequence[ProgressPoint]:
        return self._tx.read(lambda s: trial_views.progress(s, job_id, task_index, points))

    def events(self, job_id: str, after: int, limit: int) -> Sequence[Event]:
        return self._tx.read(lambda s: job_events.events(s, job_id, after, limit))

    def best(self, workload: Workload, target: TargetQuery, device_filter: Mapping[str, str]) -> Lookup:
        return self._tx.look_up(lambda c: lookup.best(c, self._version, workload, target, device_filter))

    def nearest(self, workload: Workload, target: TargetQuery, limit: int) -> Sequence[ScheduleView]:
        return self._tx.read(lambda s: lookup.nearest(s, self._version, workload, target, limit))

    def schedule(self, schedule_id: str) -> ScheduleView:
        return self._tx.read(lambda s: schedules.schedule(s, schedule_id))

    def stale(self, limit: int, cursor: str | None) -> Page[StaleView]:
        return self._tx.look_up(lambda c: staleness.page(c, self._version, limit, cursor))

    def schedules_of_job(self, job_id: str) -> Sequence[ScheduleView]:
        return self._tx.read(lambda s: schedules.of_job(s, job_id))

    def artifact(self, digest: str) -> bytes:
        return self._tx.read(lambda s: self._artifacts.get(s, digest))

    def count_lookup(self, workload: Workload, target: TargetQuery, status: str, now: float, count: int = 1) -> None:
        self._tx.write(lambda s: lookups.add(s, workload, target, status, now, count))

    def lookups(self, limit: int, cursor: str | None) -> Page[LookupCount]:
        return self._tx.read(lambda s: lookups.page(s, limit, cursor))

    def devices(self, now: float) -> Sequence[DeviceView]:
        return self._tx.read(lambda s: device_rows.devices(s, now))

    def counts(self) -> StoreCounts:
        return self._tx.read(jobs.counts)

    # --- keys, which the command line makes and the service looks up -------------------------------------------

    def create_key(self, name: str, scope: Scope, limits: KeyLimits) -> tuple[KeyView, str]:
        """(what is kept of it, the key, which is never shown again)."""
        return self._tx.write(lambda s: keys.create(s, name, scope, limits, self._now(s)))

    def api_keys(self) -> Sequence[KeyView]:
        return self._tx.read(keys.listed)

    def has_keys(self) -> bool:
        """Whether a key was ever made, revoked ones too."""
        return self._tx.read(keys.any_made)

    def revoke_key(self, key_id: str) -> KeyView:
        return self._tx.write(lambda s: keys.revoke(s, key_id, self._now(s)))

    def find_key(self, key: str) -> KeyView | None:
        return self._tx.read(lambda s: keys.find(s, key))

    def key(self, key_id: str) -> KeyView | None:
        return self._tx.read(lambda s: keys.by_id(s, key_id))

    def add_finished_job(self, spec: JobSpec, finished: Sequence[bulk.FinishedTask]) -> str:
        """Store what was measured elsewhere or before as a completed job, with the rows that a runner would have left;
        its id. Quick: for many measurements at once. ValueError where `finished` does not fit `spec`."""
        return self._tx.write(
            lambda s: bulk.add_finished_job(s, self._artifacts, self._version, spec, finished, self._now(s))
        )

    def ended_jobs(self) -> Sequence[str]:
        """Ids of the jobs that have ended, the oldest first."""
        return self._tx.read(travel.ended)

    def job_content(self, job_id: str) -> dict[str, object] | None:
        """All that a job measured and promoted, as JSON, and the artifacts' digests with it; None where there is
        nothing. NotFound."""
        return self._tx.read(lambda s: travel.content(s, job_id))

    def add_job_content(self, content: Mapping[str, object], artifacts: Mapping[str, bytes]) -> bool:
        """Store what `job_content` gave elsewhere; False where the job is here already (nothing changes then). Raises
        BadContent, which names what is wrong."""
        return self._tx.write(lambda s: travel.add(s, self._artifacts, self._version, content, artifacts, self._now(s)))

    def ping(self) -> None:
        """Raises StoreUnavailable, StoreDamaged or SchemaMismatch. A file that can be read but not written (a full
        disk) is found out by writing: nothing is changed."""
        check_revision(self._tx.engine)
        if not self._tx.postgresql:
            self._tx.write(touch_revision)


if TYPE_CHECKING:  # the type checker compares every signature with the ports'

    def _for_a_runner(store: SqlStore) -> RunnerStore:
        return store

    def _for_the_service(store: SqlStore) -> ServiceStore:
        return store
