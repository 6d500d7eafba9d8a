"""What a runner reads back to resume and to learn, and what it tells about a task besides trials."""

import json
from collections.abc import Mapping

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from db import events
from db.leases import holding, leased_task, working
from db.mapping import candidate_of, canonical, clean, finite, measurement_of, measurement_text, target_of, workload_of
from db.states import touch
from db.tables import JobRow, MeasurementRow, TaskRow, TrialRow
from tuner.measurement import Measurement
from tuner.ports import Lease, Progress
from tuner.task import Task, TuningRecord
from tuner.views import Conflict

# workload, target, job id, ordinal, candidate, predicted score, attempt, measurement
Records = Select[str, str | None, str, int, str, float | None, int, str]


def bind(session: Session, lease: Lease, task_id: int, task: Task) -> None:
    """Binding to an equal target again changes nothing; to another kind of device is a Conflict."""
    job = working(session, lease)
    row = leased_task(session, job, task_id)
    if task.workload.key != row.workload_key:
        raise Conflict(f"task {task_id} has another workload")
    if row.target is not None:
        bound = Task(task.workload, target_of(row.target))
        if bound.key != task.key:
            raise Conflict(f"task {task_id} is bound to {bound.key}, not {task.key}")
        return
    row.target = canonical(task.target.to_json())
    row.target_kind = task.target.kind


def of_task(session: Session, lease: Lease, task_id: int) -> list[TuningRecord]:
    job = holding(session, lease)
    leased_task(session, job, task_id)
    query = _records().where(MeasurementRow.task_id == task_id).order_by(TrialRow.ordinal, MeasurementRow.attempt)
    return [_record(*row) for row in session.execute(query)]


def related(session: Session, task: Task, limit: int) -> list[TuningRecord]:
    query = related_query(task.workload.op, task.target.kind, max(limit, 0))
    return [_record(*row) for row in session.execute(query)]


def related_query(op: str, target_kind: str, limit: int) -> Records:
    """Measurements of an op on a kind of device over all jobs, newest first."""
    query = _records().where(MeasurementRow.op == op, MeasurementRow.target_kind == target_kind)
    return query.order_by(MeasurementRow.id.desc()).limit(limit)


def _records() -> Records:
    trial = (TrialRow.ordinal, TrialRow.candidate, TrialRow.predicted_score)
    task = (TaskRow.workload, TaskRow.target, TaskRow.job_id)
    return (
        select(*task, *trial, MeasurementRow.attempt, MeasurementRow.measurement)
        .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
        .join(TaskRow, TaskRow.id == MeasurementRow.task_id)
    )


def _record(
    workload: str,
    target: str | None,
    job_id: str,
    ordinal: int,
    candidate: str,
    predicted_score: float | None,
    attempt: int,
    measurement: str,
) -> TuningRecord:
    assert target is not None  # a measurement is refused before its task is bound
    task = Task(workload_of(workload), target_of(target))
    found = measurement_of(measurement)
    return TuningRecord(task, candidate_of(candidate), ordinal, attempt, found, job_id, predicted_score)


def set_baseline(session: Session, lease: Lease, task_id: int, name: str, measurement: Measurement, now: float) -> None:
    job = working(session, lease)
    row = leased_task(session, job, task_id)
    row.baseline_name = clean(name)
    row.baseline_latency_s = measurement.latency_s
    row.baseline = measurement_text(measurement)
    touch(job, now)
    baseline = {"name": row.baseline_name, "latency_s": row.baseline_latency_s, "outcome": measurement.outcome.value}
    events.append(session, job, "job", {"task": row.position, "baseline": baseline}, now)


def report(session: Session, lease: Lease, told: Progress, now: float) -> None:
    """Add the report's seconds to the job's, by phase (they count from the report before), and tell it."""
    job = working(session, lease)
    touch(job, now)
    _add_seconds(job, told.seconds)
    data = {
        "task": told.task_index,
        "phase": told.phase,
        "seconds": dict(told.seconds),
        "message": told.message,
    }
    events.append(session, job, _kind(told.phase), data, now)


def _add_seconds(job: JobRow, seconds: Mapping[str, float]) -> None:
    totals: dict[str, float] = json.loads(job.phase_seconds)
    for phase, spent in seconds.items():
        totals[phase] = totals.get(phase, 0.0) + (finite(spent) or 0.0)
    job.phase_seconds = json.dumps(totals)


def _kind(phase: str) -> str:
    if phase.startswith("model") or phase == "train":
        return "model"
    return "device" if phase.startswith("device") else "job"
