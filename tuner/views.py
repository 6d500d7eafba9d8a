"""Read models: what the service shows of a job, as plain data. And the half of the store that the service uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from search_space.candidate import Candidate
from search_space.target import Target, TargetQuery
from search_space.workload import Workload
from tuner.access import KeyView, Owner
from tuner.best import BestConfig
from tuner.job import JobSpec, JobState, StopReason
from tuner.outcome import Outcome

T = TypeVar("T")


@dataclass(frozen=True)
class TaskView:
    index: int
    workload: Workload
    weight: float
    trials: int
    target: Target | None  # bound at the first claim
    best_latency_s: float | None  # best valid measurement so far, or the promoted one
    best: BestConfig | None  # after promotion
    schedule_id: str | None
    baseline_name: str | None
    baseline_latency_s: float | None
    stop_reason: StopReason | None


@dataclass(frozen=True)
class JobView:
    """Times are seconds since the epoch (UTC). `failed_by` counts trials by outcome other than OK."""

    id: str
    spec: JobSpec
    state: JobState
    stop_reason: StopReason | None
    error: tuple[str, str] | None  # (code, message)
    trials_done: int
    trials_ok: int
    failed_by: Mapping[Outcome, int]
    created_at: float
    started_at: float | None
    finished_at: float | None
    tasks: Sequence[TaskView]
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    elapsed_s: float = 0.0
    last_event: int = 0  # sequence of the newest event of the job, read in the same transaction
    key_id: str | None = None  # whose it is: the API key that submitted it
    pruned_at: float | None = None  # when its records were removed by retention


@dataclass(frozen=True)
class TrialView:
    id: int
    ordinal: int
    task_index: int
    attempt: int
    candidate: Candidate
    outcome: Outcome
    latency_s: float | None
    ci95_s: tuple[float, float] | None
    predicted_score: float | None
    error: str | None
    device_id: str | None
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True)
class ProgressPoint:
    """Best so far after trial `ordinal` of task `task_index`; None where nothing valid was seen yet."""

    ordinal: int
    task_index: int
    at: float
    latency_s: float | None
    best_latency_s: float | None


@dataclass(frozen=True)
class Event:
    """`sequence` counts from 1 within a job, without gaps; `kind` is job, trial, best, model or device."""

    sequence: int
    kind: str
    data: Mapping[str, object]
    at: float


@dataclass(frozen=True)
class ScheduleView:
    id: str
    job_id: str
    workload: Workload
    target: Target
    best: BestConfig
    measured_at: float


@dataclass(frozen=True)
class Lookup:
    """`status`: exact, nearest, stale or missed. Stale: a schedule of the same workload and target query exists for
    another identity or sketch version; `differs` names the fields."""

    status: str
    schedule: ScheduleView | None
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class StaleView:
    """A workload that is served, but not exactly any more: `differs` names identity fields, or sketch_version."""

    workload: Workload
    target: Target
    differs: tuple[str, ...]


@dataclass(frozen=True)
class LookupCount:
    workload: Workload
    target: TargetQuery
    counts: Mapping[str, int]
    last_at: float


@dataclass(frozen=True)
class DeviceView:
    runner_id: str
    device_id: str
    target: Target
    healthy: bool
    detail: str
    last_seen_at: float
    alive: bool  # its heartbeat has not expired


@dataclass(frozen=True)
class StoreCounts:
    """Totals for monitoring, cheap enough to be read at every scrape. States and outcomes with none may be absent."""

    jobs: Mapping[JobState, int]
    trials: Mapping[Outcome, int]
    schedules: int
    lookups: Mapping[str, int]  # by status: exact, nearest, stale, missed
    open_trials: int = 0  # what unfinished jobs may still measure
    leases_lost: int = 0  # leases that ran out because a runner was not heard of
    # build_seconds, measure_seconds: ([(upper bound, how many were at most that)], sum)
    seconds: Mapping[str, tuple[Sequence[tuple[str, float]], float]] = field(default_factory=dict)
    device_alive_s: Mapping[str, float] = field(default_factory=dict)  # by kind: healthy devices' seconds
    device_busy_s: Mapping[str, float] = field(default_factory=dict)  # by kind: of those, seconds of measuring


@dataclass(frozen=True)
class Keep:
    """What is kept of a job that is removed: schedules that lookups serve, and the records it measured."""

    winners: bool = True
    records: bool = False


@dataclass(frozen=True)
class Removed:
    """What went with a job. `deleted`: the job itself too; otherwise it stays for the sake of what was kept."""

    job_id: str
    deleted: bool
    trials: int
    schedules: int


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    next_cursor: str | None


class NotFound(LookupError):
    """No such job, trial or schedule."""


class Conflict(RuntimeError):
    """The request contradicts the present state (cancel of a completed job, a reused idempotency key)."""


class BadCursor(ValueError):
    """A page cursor that this store did not hand out."""


class ServiceStore(Protocol):
    """The half of the store that the HTTP service uses. Thread-safe; returns copies; every method one transaction.

    Raises NotFound, Conflict and BadCursor as named. Job states change only along `tuner.job.TRANSITIONS`.
    """

    def create_job(
        self, spec: JobSpec, idempotency_key: str | None, now: float, owner: Owner | None = None
    ) -> tuple[JobView, bool]:
        """(job, created). The same key with the same spec returns the first job; with another spec Conflict.
        LimitReached where the owner's open jobs leave no room for it."""

    def job(self, job_id: str) -> JobView: ...

    def jobs(self, state: JobState | None, limit: int, cursor: str | None) -> Page[JobView]:
        """Newest first."""

    def cancel(self, job_id: str, now: float) -> JobView:
        """Idempotent; Conflict on a completed or failed job."""

    def interrupt_expired(self) -> int:
        """Mark running jobs whose lease has run out as interrupted; how many there were."""

    def pause(self, job_id: str, now: float) -> JobView: ...

    def resume(self, job_id: str, now: float) -> JobView: ...

    def remove_job(self, job_id: str, keep: Keep, now: float) -> Removed:
        """Conflict for a job that has not ended."""

    def prune(self, before: float, keep: Keep, limit: int, now: float) -> Sequence[Removed]:
        """Remove up to `limit` jobs that ended before that time, the oldest first, each in a transaction of its own."""

    def trials(
        self,
        job_id: str,
        task_index: int | None,
        outcome: Outcome | None,
        limit: int,
        cursor: str | None,
        newest_first: bool = False,
    ) -> Page[TrialView]:
        """By ordinal. A cursor goes on in the order in which it was handed out, BadCursor in the other."""

    def trial(self, trial_id: int) -> tuple[TrialView, Workload, Target]: ...

    def progress(self, job_id: str, task_index: int, points: int) -> Sequence[ProgressPoint]:
        """Down-sampled to at most `points`, every improvement of the best kept."""

    def events(self, job_id: str, after: int, limit: int) -> Sequence[Event]: ...

    def best(self, workload: Workload, target: TargetQuery, device_filter: Mapping[str, str]) -> Lookup:
        """The newest exact schedule; `device_filter` narrows by identity fields (driver, cuda, policy, ...)."""

    def nearest(self, workload: Workload, target: TargetQuery, limit: int) -> Sequence[ScheduleView]:
        """Schedules of the same op, dtypes and flags on that target, nearest in log shape first."""

    def schedule(self, schedule_id: str) -> ScheduleView: ...

    def stale(self, limit: int, cursor: str | None) -> Page[StaleView]:
        """Workloads that are served, but not exactly for the newest device of their kind."""

    def schedules_of_job(self, job_id: str) -> Sequence[ScheduleView]: ...

    def artifact(self, digest: str) -> bytes:
        """NotFound for a hash that is not stored."""

    def count_lookup(
        self, workload: Workload, target: TargetQuery, status: str, now: float, count: int = 1
    ) -> None: ...

    def lookups(self, limit: int, cursor: str | None) -> Page[LookupCount]: ...

    def devices(self, now: float) -> Sequence[DeviceView]: ...

    def counts(self) -> StoreCounts: ...

    def find_key(self, key: str) -> KeyView | None:
        """What is known of a presented API key; None for one that was never made, or was revoked."""

    def key(self, key_id: str) -> KeyView | None:
        """The same by the key's id."""

    def ping(self) -> None:
        """Raises when the database cannot be reached or its schema is not the expected one."""
