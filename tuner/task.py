"""One workload on one target, and what has been recorded about it."""

from dataclasses import dataclass

from search_space.candidate import Candidate
from search_space.target import Target
from search_space.workload import Workload
from tuner.measurement import Measurement


@dataclass(frozen=True)
class Task:
    workload: Workload
    target: Target

    @property
    def key(self) -> str:
        """Equal for equal workloads on one device model, arch and core count."""
        return f"{self.workload.key}:{self.target.kind}:{self.target.arch}:{self.target.model}:{self.target.cores}"


@dataclass(frozen=True)
class TuningRecord:
    """A committed measurement: `trial` is the ordinal in the job, from 0; `attempt` counts retries, from 0."""

    task: Task
    candidate: Candidate
    trial: int
    attempt: int
    measurement: Measurement
    job_id: str
    predicted_score: float | None = None


def score(record: TuningRecord, best_latency_s: float) -> float | None:
    """best / time within a task, in (0, 1]; None for a failure (a failure has no number)."""
    latency = record.measurement.latency_s
    return None if latency is None else min(1.0, best_latency_s / latency)
