"""What a user asked for, and the states it goes through."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from search_space import fields
from search_space.errors import InvalidField
from search_space.target import TargetQuery
from search_space.workload import Workload, parse_workload

MAX_TASKS = 4096
MAX_TRIALS = 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
PRESETS = ("quick", "standard", "thorough")


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # lost its runner; resumes by itself


class StopReason(StrEnum):
    TRIALS = "trials"
    TIME = "time"
    SPACE_EXHAUSTED = "space_exhausted"
    NO_IMPROVEMENT = "no_improvement"
    NEAR_ROOFLINE = "near_roofline"
    CANCELLED = "cancelled"
    NO_VALID_CANDIDATE = "no_valid_candidate"


S = JobState
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.RUNNING, S.PAUSED, S.CANCELLED, S.FAILED}),
    # Back to queued: its slice of the runner's time is over, and another job's turn has come.
    S.RUNNING: frozenset({S.COMPLETED, S.FAILED, S.PAUSED, S.CANCELLED, S.INTERRUPTED, S.QUEUED}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED}),
    S.INTERRUPTED: frozenset({S.RUNNING, S.QUEUED, S.PAUSED, S.CANCELLED, S.FAILED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
FINAL = frozenset(s for s, after in TRANSITIONS.items() if not after)


_KNOWN = frozenset(
    {"name", "target", "tasks", "workload", "max_trials", "max_seconds", "preset", "seed", "priority", "weight"}
)


@dataclass(frozen=True)
class TaskSpec:
    workload: Workload
    weight: float = 1.0


@dataclass(frozen=True)
class JobSpec:
    """A validated request. `max_seconds` counts from the first claim; None means no limit. Of jobs of one `priority`
    each gets runner time in proportion to its `weight`."""

    tasks: tuple[TaskSpec, ...]
    target: TargetQuery = field(default_factory=TargetQuery)
    name: str = ""
    max_trials: int = 64
    max_seconds: float | None = None
    preset: str = "standard"
    seed: int = 0
    priority: int = 0
    weight: float = 1.0

    @staticmethod
    def from_json(data: object) -> "JobSpec":
        """The body of POST /v1/jobs; InvalidField with the dotted path of the field otherwise."""
        if not isinstance(data, Mapping):
            raise InvalidField("", "the body must be an object")
        fields.only(data, _KNOWN)
        name = data.get("name", "")
        if not isinstance(name, str) or len(name) > 200:
            raise InvalidField("name", "must be a string of at most 200 characters")
        max_seconds = fields.number(data, "max_seconds", None, low=0.0)
        if max_seconds == 0.0:
            raise InvalidField("max_seconds", "must be above 0")
        return JobSpec(
            tasks=_tasks(data),
            target=TargetQuery.from_json(data.get("target")),
            name=name,
            max_trials=fields.integer(data, "max_trials", 64, high=MAX_TRIALS),
            max_seconds=max_seconds,
            preset=fields.choice(data, "preset", PRESETS, "standard"),
            seed=fields.integer(data, "seed", 0, low=0, high=fields.INT64_MAX),
            priority=fields.integer(data, "priority", 0, low=-100, high=100),
            weight=_weight(data),
        )

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {
            "name": self.name,
            "target": self.target.to_json(),
            "tasks": [{"workload": t.workload.to_json(), "weight": t.weight} for t in self.tasks],
            "max_trials": self.max_trials,
            "max_seconds": self.max_seconds,
            "preset": self.preset,
            "seed": self.seed,
            "priority": self.priority,
        }
        # Left out where it says nothing: a job that was stored before there were weights keeps its digest.
        return out if self.weight == 1.0 else {**out, "weight": self.weight}


def _weight(data: Mapping[str, object]) -> float:
    weight = fields.number(data, "weight", 1.0, low=MIN_WEIGHT)
    if weight is None or weight > MAX_WEIGHT:
        raise InvalidField("weight", f"must be at most {MAX_WEIGHT:g}, got {weight}")
    return weight


def _tasks(data: Mapping[str, object]) -> tuple[TaskSpec, ...]:
    if ("workload" in data) == ("tasks" in data):
        raise InvalidField("tasks", "give either tasks or a single workload")
    if "workload" in data:
        return (_task({"workload": data["workload"]}, ""),)
    items = data["tasks"]
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_TASKS:
        raise InvalidField("tasks", f"must be a list of 1 to {MAX_TASKS} tasks")
    return tuple(_task(item, f"tasks.{i}.") for i, item in enumerate(items))


def _task(item: object, path: str) -> TaskSpec:
    if not isinstance(item, Mapping):
        raise InvalidField(path.rstrip("."), "must be an object")
    try:
        fields.only(item, frozenset({"workload", "weight"}))
        weight = fields.number(item, "weight", 1.0, low=0.0)
    except InvalidField as fault:
        raise InvalidField(path + fault.field, fault.message, fault.allowed) from None
    if not weight:
        raise InvalidField(f"{path}weight", "must be above 0")
    try:
        return TaskSpec(parse_workload(item.get("workload")), weight)
    except InvalidField as fault:
        raise fault.under(f"{path}workload") from None
