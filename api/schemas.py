"""What the service answers with about jobs, trials and schedules. Times are RFC 3339 in UTC, latencies seconds; what
does not exist is null."""

import math
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api import examples
from tuner.job import JobState, StopReason
from tuner.outcome import Outcome

T = TypeVar("T")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# JSON has no NaN or Infinity (RFC 8259 section 6): what is not finite is null.
Number = Annotated[float | None, BeforeValidator(_finite)]
Interval = Annotated[tuple[float, float] | None, Field(description="95 % confidence interval, [low, high]")]
Object = dict[str, Any]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadOut(BaseModel):
    """The canonical JSON of a workload: `op`, and every field that differs from its default."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra={"examples": [examples.GEMM]})
    op: str


class TargetOut(Answer):
    """A device, as schedules are made for it. Sizes are bytes."""

    kind: str
    arch: str
    model: str
    cores: int
    vector_bits: int = 0
    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    memory_bytes: int = 0
    shared_bytes: int = 0
    features: list[str] = []


class TargetQueryOut(Answer):
    """What a request asks of the device; an absent field is left open."""

    kind: str
    arch: str | None = None
    model: str | None = None
    cores: int | None = None


class Served(Answer):
    """What to run: our schedule, or the vendor's library where ours would be slower."""

    kind: Literal["tilewright", "vendor"]


class Baseline(Answer):
    name: str = Field(description="the vendor's library")
    latency_s: Number


class TaskBest(Answer):
    """`promoted`: the finalists were measured again; before that the speedup and the roofline share are null."""

    latency_s: Number
    tflops: Number
    speedup_vs_baseline: Number = Field(description="vendor / ours, median of paired runs")
    speedup_ci95: Interval
    roofline_fraction: Number
    promoted: bool
    served: Served | None


class JobTask(Answer):
    index: int
    workload: WorkloadOut
    weight: float
    trials: int
    target: TargetOut | None = Field(description="bound when a runner first claims the task")
    best: TaskBest | None
    baseline: Baseline | None
    schedule_id: str | None
    stop_reason: StopReason | None


class TrialCounts(Answer):
    done: int
    ok: int
    failed_by: dict[Outcome, int]


class JobError(Answer):
    code: str
    message: str


class StaleItem(Answer):
    workload: WorkloadOut
    target: TargetOut
    differs: list[str] = Field(description="identity fields that changed since it was tuned, or sketch_version")


class RemovedJob(Answer):
    id: str
    deleted: bool = Field(description="false: the job stays, for the sake of what was kept of it")
    trials: int
    schedules: int


class JobSummary(Answer):
    id: str
    name: str
    state: JobState
    stop_reason: StopReason | None
    target: TargetQueryOut
    seed: int
    preset: str
    priority: int
    weight: Number = Field(description="share of runner time among jobs of one priority")
    max_trials: int
    max_seconds: Number
    trials: TrialCounts
    task_count: int
    elapsed_s: Number = Field(description="time in the state running, over all claims")
    search_overhead: Number | None = Field(description="share of that which proposing, learning and committing took")
    eta_s: Number = Field(description="from the trials' rate so far and the limits; null where nothing is known")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: JobError | None


class Job(JobSummary):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.JOB]})
    tasks: list[JobTask]
    phase_seconds: dict[str, Number]
    last_event: int = Field(description="sequence of the newest event, to resume the event stream from")
    waiting_for: str | None = Field(description="what a waiting job lacks (a runner, a device); null while it has all")


class Trial(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.TRIAL]})
    id: int
    number: int = Field(description="ordinal in the job, from 0")
    task: int
    attempt: int
    sketch: str
    sketch_version: int
    knobs: Object
    outcome: Outcome
    latency_s: Number
    latency_ci95_s: Interval
    predicted_score: Number
    error: str | None
    device: str | None
    started_at: datetime | None
    finished_at: datetime | None


class TrialDetail(Trial):
    model_config = ConfigDict(json_schema_extra={"examples": [examples.TRIAL_DETAIL]})
    workload: WorkloadOut
    target: TargetOut


class ProgressItem(Answer):
    number: int
    at: datetime
    latency_s: Number
    best_latency_s: Number


class TaskProgress(Answer):
    task: int
    baseline: Baseline | None
    points: list[ProgressItem] = Field(description="down-sampled; every improvement of the best is kept")


class Progress(Answer):
    items: list[TaskProgress]


class Roofline(Answer):
    bound: Literal["compute", "memory"] | None
    fraction: Number
    ridge_flop_per_byte: Number


class Schedule(Answer):
    id: str
    workload: WorkloadOut
    target: TargetOut
    sketch: str
    sketch_version: int
    knobs: Object
    artifact: str = Field(description="content hash of the built kernel")
    artifact_url: str | None = Field(description="null where the kernel cannot run the asked shape as it is")


class ScheduleDetail(Answer):
    """A schedule and what was measured of it."""

    schedule: Schedule
    latency_s: Number
    latency_ci95_s: Interval
    tflops: Number
    bytes_per_s: Number = Field(description="the fewest bytes the workload must move, per second")
    baseline: Baseline | None
    speedup_vs_baseline: Number
    speedup_ci95: Interval
    roofline: Roofline
    served: Served
    max_rel_err: Number
    environment: Object = Field(description="what the measurement holds for")
    job_id: str
    measured_at: datetime


class BestSchedule(ScheduleDetail):
    """The schedule of exactly the asked workload."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.BEST]})
    exact: Literal[True] = True


class NearestSchedule(Answer):
    """A neighbour's schedule, legal for the asked shape. Its times are predictions, never measurements."""

    model_config = ConfigDict(json_schema_extra={"examples": [examples.NEAREST]})
    exact: Literal[False] = False
    nearest_to: WorkloadOut = Field(description="the workload asked for")
    schedule: Schedule
    runs_as_is: bool = Field(description="whether the built kernel takes the asked shape at run time")
    predicted_latency_s: Number
    predicted_interval_s: Interval
    predicted_baseline_latency_s: Number
    neighbour: ScheduleDetail
    served: Served


class BatchItem(Answer):
    status: Literal["exact", "nearest", "stale", "missed", "refused"]
    result: BestSchedule | NearestSchedule | None
    problem: "Problem | None"


class Batch(Answer):
    items: list[BatchItem]


class LookupItem(Answer):
    workload: WorkloadOut
    target: TargetQueryOut
    counts: dict[str, int]
    last_at: datetime


class PageOf(Answer, Generic[T]):
    items: list[T]
    next_cursor: str | None


class FieldFault(BaseModel):
    field: str
    message: str
    allowed: list[str] = []


class Problem(BaseModel):
    """RFC 9457. Some problems carry more: `errors` and `field` (422), `differs` (stale), `limit_bytes` (413)."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [examples.PROBLEM]})
    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    errors: list[FieldFault] = []


BatchItem.model_rebuild()
