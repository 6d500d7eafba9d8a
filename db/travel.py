"""A job as it travels between sites: its records and winners as plain JSON, and back into rows.

A job keeps its id wherever it goes, and does not change once it has ended: where the id is known the job is there, so
nothing is ever stored twice. Of a trial that was tried again the last attempt travels.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from db import blobs
from db.bulk import FinishedTask, FinishedTrial, Origin, add_finished_job
from db.mapping import candidate_of, measurement_of
from db.sketch_versions import SketchVersion
from db.tables import JobRow, MeasurementRow, TaskRow, TrialRow
from db.tables_served import ScheduleRow
from search_space.candidate import Candidate
from search_space.errors import InvalidField
from search_space.target import Target
from search_space.workload import parse_workload
from tuner.best import BestConfig
from tuner.job import FINAL, JobSpec, JobState, StopReason
from tuner.measurement import Measurement
from tuner.task import Task
from tuner.views import NotFound


class BadContent(ValueError):
    """What claims to be a job is none."""


def ended(session: Session) -> Sequence[str]:
    """Ids of the jobs that have ended, the oldest first."""
    query = select(JobRow.id).where(JobRow.finished_at.is_not(None)).order_by(JobRow.finished_at, JobRow.id)
    return session.scalars(query).all()


def content(session: Session, job_id: str) -> dict[str, object] | None:
    job = session.get(JobRow, job_id, options=[undefer(JobRow.spec)])
    if job is None:
        raise NotFound(f"no job {job_id}")
    query = (
        select(TaskRow).where(TaskRow.job_id == job_id).order_by(TaskRow.position).options(undefer(TaskRow.baseline))
    )
    tasks = [_task_content(session, task) for task in session.scalars(query)]
    if JobState(job.state) not in FINAL or not any(t["trials"] or t["winner"] for t in tasks):
        return None
    return {
        "id": job.id,
        "spec": json.loads(job.spec),
        "state": job.state,
        "stop_reason": job.stop_reason,
        "error": [job.error_code, job.error_message] if job.error_code else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "tasks": tasks,
    }


def _task_content(session: Session, task: TaskRow) -> dict[str, object]:
    attempt = MeasurementRow.attempt == TrialRow.measured_attempt
    query = (
        select(TrialRow.candidate, TrialRow.predicted_score, MeasurementRow.measurement, MeasurementRow.artifact)
        .join(MeasurementRow, (MeasurementRow.trial_id == TrialRow.id) & attempt)
        .where(TrialRow.task_id == task.id)
        .order_by(TrialRow.ordinal)
    )
    names = ("candidate", "predicted_score", "measurement", "artifact")
    trials = [
        dict(zip(names, (json.loads(c), p, json.loads(m), a), strict=True)) for c, p, m, a in session.execute(query)
    ]
    winner = session.get(ScheduleRow, task.schedule_id) if task.schedule_id else None
    return {
        "target": json.loads(task.target) if task.target else None,
        "stop_reason": task.stop_reason,
        "baseline": [task.baseline_name, json.loads(task.baseline)] if task.baseline else None,
        "winner": None if winner is None else _winner(winner),
        "trials": trials,
    }


def _winner(row: ScheduleRow) -> dict[str, object]:
    return {"id": row.id, "best": json.loads(row.best), "measured_at": row.measured_at}


def add(
    session: Session,
    store: blobs.ArtifactStore,
    version: SketchVersion,
    told: Mapping[str, object],
    artifacts: Mapping[str, bytes],
    now: float,
) -> bool:
    try:
        origin = _origin(told)
        if session.get(JobRow, origin.job_id) is not None:
            return False
        spec = JobSpec.from_json(told["spec"])
        finished = _finished(session, spec, _list(told["tasks"]), artifacts)
        add_finished_job(session, store, version, spec, finished, now, origin)
    except (InvalidField, KeyError, TypeError, ValueError, AssertionError) as fault:
        raise BadContent(f"job {str(told.get('id'))[:60]}: {type(fault).__name__}: {fault}") from fault
    return True


def _origin(told: Mapping[str, object]) -> Origin:
    state = JobState(str(told["state"]))
    if state not in FINAL:
        raise ValueError(f"state: {state.value} is not an end")
    error = told["error"]
    job_id = str(told["id"])
    if not job_id.startswith("job_") or not job_id[4:].isalnum() or not job_id.isascii() or len(job_id) > 40:
        raise ValueError(f"id: {job_id[:60]!r} is not a job's")
    code, message = (None, None) if error is None else _list(error)
    return Origin(
        job_id,
        state,
        None if told["stop_reason"] is None else StopReason(str(told["stop_reason"])),
        None if code is None else (str(code), str(message)),
        _time(told, "created_at") or 0.0,
        _time(told, "started_at"),
        _time(told, "finished_at"),
    )


def _time(told: Mapping[str, object], name: str) -> float | None:
    value = told[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: must be a number")
    return float(value)


def _finished(
    session: Session, spec: JobSpec, tasks: Sequence[object], artifacts: Mapping[str, bytes]
) -> list[FinishedTask]:
    if len(tasks) != len(spec.tasks):
        raise ValueError(f"tasks: {len(tasks)} are told of {len(spec.tasks)}")
    objects = [_object(t) for t in tasks]
    bound = [Target.from_json(_object(t["target"])) for t in objects if t["target"] is not None]
    if not bound:
        raise ValueError("tasks: none has a target")
    out = []
    for asked, told in zip(spec.tasks, objects, strict=True):
        # A task that was never begun has no target of its own; its job's is as good as any.
        target = bound[0] if told["target"] is None else Target.from_json(_object(told["target"]))
        out.append(_finished_task(session, Task(parse_workload(asked.workload.to_json()), target), told, artifacts))
    return out


def _finished_task(
    session: Session, task: Task, told: Mapping[str, object], artifacts: Mapping[str, bytes]
) -> FinishedTask:
    winner = None if told["winner"] is None else _object(told["winner"])
    best = None if winner is None else BestConfig.from_json(_object(winner["best"]))
    if best is not None and best.artifact not in artifacts:
        raise ValueError(f"winner: its artifact {best.artifact} is not there")
    schedule_id = None if winner is None else str(winner["id"])
    if schedule_id is not None and session.get(ScheduleRow, schedule_id) is not None:
        raise ValueError(f"winner: the schedule {schedule_id} belongs to another job here")
    baseline = None if told["baseline"] is None else _list(told["baseline"])
    return FinishedTask(
        task,
        [_trial(_object(t)) for t in _list(told["trials"])],
        None if best is None else (best, artifacts[best.artifact]),
        None if told["stop_reason"] is None else StopReason(str(told["stop_reason"])),
        None if baseline is None else (str(baseline[0]), Measurement.from_json(_object(baseline[1]))),
        schedule_id,
        None if winner is None else _time(winner, "measured_at"),
    )


def _trial(told: Mapping[str, object]) -> FinishedTrial:
    candidate: Candidate = candidate_of(json.dumps(told["candidate"]))
    predicted = told["predicted_score"]
    artifact = told["artifact"]
    return FinishedTrial(
        candidate,
        measurement_of(json.dumps(told["measurement"])),
        None if artifact is None else str(artifact)[:64],
        None if predicted is None else float(str(predicted)),
    )


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"an object is needed, not {type(value).__name__}")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list is needed, not {type(value).__name__}")
    return value
