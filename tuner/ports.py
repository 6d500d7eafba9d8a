"""What the search is handed: a device to measure on, and a store to remember in.

Plain data crosses these ports; implementations live in `workers/` and `db/`, which do not know each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tuner.best import BestConfig, Final
from tuner.job import JobSpec, JobState, StopReason
from tuner.measurement import Measurement
from tuner.roofs import Roofs
from tuner.task import Task, TuningRecord

# --- measuring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasurePolicy:
    """How numbers are taken; part of a record's identity through `version` and `cache`.

    Seconds are limits for one candidate. Repeats go on until the 95 % interval of the median is under
    `target_ci` of it or `time_share_s` is spent. A probe slower than `race_factor` times the task's best stops.
    A final takes `final_rounds`, and up to `final_rounds_most` while the interval of some contestant's ratio to the
    fastest is wider than `final_target_ci` of it; after `final_time_s` no further round begins.
    """

    version: str = "v1"
    cache: str = "warm"  # "cold" on a GPU
    build_timeout_s: float = 60.0
    run_timeout_s: float = 30.0
    min_repeats: int = 5
    time_share_s: float = 0.5
    target_ci: float = 0.02
    race_factor: float = 2.0
    final_rounds: int = 21
    final_rounds_most: int = 210
    final_target_ci: float = 0.1
    final_time_s: float = 12.0


@dataclass(frozen=True)
class Trial:
    """A candidate with its place in the job's budget. `ordinal` counts from 0 over the whole job."""

    id: int
    ordinal: int
    attempt: int
    candidate: Candidate
    predicted_score: float | None = None


@dataclass(frozen=True)
class Measured:
    """The outcome of one trial. `artifact` is the content hash of what was built (None when nothing was)."""

    trial: Trial
    measurement: Measurement
    artifact: str | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """One device that a measurer can use."""

    device_id: str
    target: Target
    identity: EnvironmentIdentity
    roofs: Roofs | None
    healthy: bool = True
    detail: str = ""


class MeasureSession(Protocol):
    """Measures candidates of one task on one device. Total: a bad candidate is a value, never an exception.

    Not thread-safe. Submitting does not block on the device; on a GPU the compiler of a later batch overlaps with
    the measuring of an earlier one, on a CPU the two exclude each other.
    """

    @property
    def device(self) -> DeviceInfo: ...

    @property
    def baseline(self) -> tuple[str, Measurement] | None:
        """(vendor library's name, its measurement by the same protocol); None before `open` measured it."""

    def submit(self, trials: Sequence[Trial], best_latency_s: float | None) -> None:
        """Queue trials; `best_latency_s` is the task's best so far, for racing."""

    def results(self, timeout_s: float) -> list[Measured]:
        """What has ended since the last call; waits up to `timeout_s` for the first. May be empty."""

    def pending(self) -> int:
        """Trials submitted whose result was not handed out yet."""

    def final(self, candidates: Sequence[Candidate]) -> Final:
        """Measure the vendor's kernel and `candidates` again, interleaved in random order over many rounds."""

    def artifact(self, digest: str) -> bytes:
        """The artifact built in this session with that content hash; KeyError when there is none."""

    def cancel(self) -> None:
        """Drop what is queued and kill what runs; the device is free when this returns. Idempotent."""

    def close(self) -> None:
        """Give the device back. Idempotent."""


class Measurer(Protocol):
    """Where measuring happens. Raises MeasurerUnavailable when it is not there at all (retry later)."""

    def devices(self) -> Sequence[DeviceInfo]: ...

    def open(self, task: Task, device: DeviceInfo, policy: MeasurePolicy, seed: int) -> MeasureSession:
        """Take the device for one task: inputs and reference are made once, the vendor's kernel is measured."""


class TaskRefused(RuntimeError):
    """The task cannot be taken up on the device (no room for its operands, a child that does not start): trying again
    would end the same way."""


class MeasurerUnavailable(RuntimeError):
    """The measuring service cannot be reached; the caller should try again later, nothing was lost."""


# --- remembering ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """The right to work on a job's tasks until it expires. `token` is a fencing token: it grows with each claim, and
    a commit under an older one is refused with LeaseLost."""

    job_id: str
    runner_id: str
    token: int
    spec: JobSpec
    tasks: Sequence["LeasedTask"]
    elapsed_s: float = 0.0  # seconds the job has already run, for its time budget


@dataclass(frozen=True)
class LeasedTask:
    """`index` is the task's place in the job; `target` the device kind it was bound to at its first claim."""

    task_id: int
    index: int
    weight: float
    stop_reason: StopReason | None = None
    target: Target | None = None


class StoreUnavailable(RuntimeError):
    """The database is locked, full or out of reach: nothing of the call was stored, try it again later."""


class LeaseLost(RuntimeError):
    """Another runner holds the job now: stop at once and commit nothing."""


@dataclass(frozen=True)
class Progress:
    """What a runner reports while it works, shown as an event; seconds of wall time spent in each phase."""

    task_index: int
    phase: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


class RunnerStore(Protocol):
    """The half of the store that a runner uses. Every method is one transaction; those that take a lease raise
    LeaseLost when its token is not the job's current one. Thread-safe."""

    def claim(
        self,
        runner_id: str,
        kinds: Sequence[str],
        lease_s: float,
        only: str | None = None,
        targets: Sequence[Target] = (),
    ) -> Lease | None:
        """The job to work on next (priority, then age) among those that `kinds` of devices can run, or None; `only`
        leaves out all but one job; `targets`, where given, those that ask for another arch, model or number of cores
        than any of these has, or have a task that was bound to another one: they wait, and block nobody.
        Takes queued and interrupted jobs, and running ones whose lease expired (first marked interrupted)."""

    def renew(self, lease: Lease, lease_s: float) -> JobState:
        """Extend the lease; returns the state that users want (PAUSED and CANCELLED mean: stop now)."""

    def bind(self, lease: Lease, task_id: int, task: Task) -> None:
        """Fix the target of a task at its first claim."""

    def records(self, lease: Lease, task_id: int) -> Sequence[TuningRecord]:
        """All committed measurements of the task in this job, in trial order."""

    def related_records(self, task: Task, limit: int) -> Sequence[TuningRecord]:
        """Records of the same op and target kind from all jobs, newest first: what the cost model learns from."""

    def incumbent(self, task: Task, identity: EnvironmentIdentity) -> tuple[Candidate, str] | None:
        """(candidate, artifact hash) served today for exactly this task and identity."""

    def reserve(
        self, lease: Lease, task_id: int, candidates: Sequence[tuple[Candidate, float | None]]
    ) -> Sequence[Trial]:
        """Take trial ordinals from the job's budget; fewer (even none) come back when the budget is nearly spent.
        Trials reserved under an older token and never committed are handed out again first (attempt kept)."""

    def retry(self, lease: Lease, trial: Trial) -> Trial:
        """The same trial with attempt + 1; takes nothing from the budget."""

    def commit(self, lease: Lease, task_id: int, measured: Measured) -> None:
        """Store one measurement: unique on (job, task, candidate, attempt), so a second commit changes nothing."""

    def set_baseline(self, lease: Lease, task_id: int, name: str, measurement: Measurement) -> None: ...

    def promote(
        self, lease: Lease, task_id: int, best: BestConfig, artifact: bytes, beaten: Candidate | None = None
    ) -> str:
        """Make `best` what lookups serve for its task and identity, with history; returns the schedule id. One that is
        served already stays when it is faster, unless it is `beaten`: it lost to `best` in the same final."""

    def report(self, lease: Lease, progress: Progress) -> None:
        """Tell how far the work is; `progress.seconds` counts from the report before, and is added up for the job."""

    def finish_task(self, lease: Lease, task_id: int, reason: StopReason) -> None: ...

    def finish_job(self, lease: Lease, state: JobState, reason: StopReason | None, error: str | None) -> None: ...

    def release(self, lease: Lease) -> None:
        """Give the job back without finishing it (shutdown): it becomes interrupted and claimable."""

    def yield_job(self, lease: Lease, kinds: Sequence[str], slice_s: float, targets: Sequence[Target] = ()) -> bool:
        """Put the job back into the queue where a job that these kinds of devices (and one of the targets, where
        given) can run comes before it: one of a higher priority at once, one whose fair share is due after `slice_s`
        seconds of this claim. True when it was: the lease has ended, and what is in flight is handed out again."""

    def save_model(self, op: str, target_kind: str, blob: bytes, feature_version: str) -> None: ...

    def load_model(self, op: str, target_kind: str) -> tuple[bytes, str] | None: ...

    def heartbeat_devices(self, runner_id: str, devices: Sequence[DeviceInfo], ttl_s: float) -> None: ...


class Clock(Protocol):
    """The search never reads a clock itself."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float: ...
