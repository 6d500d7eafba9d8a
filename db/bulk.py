"""Many measurements at once: a whole finished job in one transaction, with the rows that a runner would have left.

For what was measured before it came here: a benchmark's filling, records of another site. Tasks go through the very
functions that a runner's calls use; only the trials, which are the many, are written by bulk inserts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert
from sqlalchemy.orm import Session

from db import blobs, jobs, leases, records, schedules
from db.mapping import canonical, clean, dump, finite, measurement_text
from db.sketch_versions import SketchVersion
from db.states import touch
from db.tables import Base, JobRow, OutcomeRow, TaskRow
from db.trial_views import level_of
from search_space.candidate import Candidate
from tuner.best import BestConfig
from tuner.job import JobSpec, JobState, StopReason
from tuner.measurement import Measurement
from tuner.ports import Lease
from tuner.task import Task

_RUNNER = "bulk"
_LEASE_S = 3600.0  # never waited for: taken and given back within one transaction
# Of the tables, not of the mapped classes: no object is kept for a row.
_TABLES = Base.metadata.tables
_INSERT_TRIALS = insert(_TABLES["trials"]).returning(_TABLES["trials"].c.id, sort_by_parameter_order=True)
_INSERT_MEASUREMENTS = insert(_TABLES["measurements"])
_INSERT_EVENTS = insert(_TABLES["events"])


@dataclass(frozen=True)
class FinishedTrial:
    candidate: Candidate
    measurement: Measurement
    artifact: str | None = None
    predicted_score: float | None = None


@dataclass(frozen=True)
class FinishedTask:
    """`best` with the bytes of its artifact, None where nothing was promoted; `baseline` with its name."""

    task: Task
    trials: Sequence[FinishedTrial]
    best: tuple[BestConfig, bytes] | None = None
    stop_reason: StopReason | None = StopReason.TRIALS
    baseline: tuple[str, Measurement] | None = None
    schedule_id: str | None = None  # a new one is made up otherwise
    measured_at: float | None = None


@dataclass(frozen=True)
class Origin:
    """What a job brings along from where it ran. Times are seconds since the epoch."""

    job_id: str
    state: JobState
    stop_reason: StopReason | None
    error: tuple[str, str] | None
    created_at: float
    started_at: float | None
    finished_at: float | None


def add_finished_job(
    session: Session,
    artifacts: blobs.ArtifactStore,
    version: SketchVersion,
    spec: JobSpec,
    finished: Sequence[FinishedTask],
    now: float,
    origin: Origin | None = None,
) -> str:
    """The id of a new completed job. `finished` has one entry a task of `spec`, in order; ValueError where they do
    not belong together, a candidate is there twice in a task, or the trials are more than `max_trials`."""
    _check(spec, finished)
    job_id = jobs.create(session, spec, None, now, job_id=origin.job_id if origin else None)[0].id
    lease = leases.claim(session, _RUNNER, [spec.target.kind], _LEASE_S, now, only=job_id)
    assert lease is not None  # queued a moment ago, by this very transaction
    for leased, item in zip(lease.tasks, finished, strict=True):
        records.bind(session, lease, leased.task_id, item.task)
        if item.baseline is not None:
            records.set_baseline(session, lease, leased.task_id, *item.baseline, now)
        _add_trials(session, lease, leased.task_id, item.trials, now)
        if item.best is not None:
            best, blob = item.best
            promoted = schedules.Promoted(best, blob, None, item.schedule_id, item.measured_at)
            schedules.promote(session, artifacts, version, lease, leased.task_id, promoted, now)
        if item.stop_reason is not None:
            leases.finish_task(session, lease, leased.task_id, item.stop_reason, now)
    _end(session, lease, origin, finished[-1].stop_reason, now)
    return job_id


def _end(session: Session, lease: Lease, origin: Origin | None, reason: StopReason | None, now: float) -> None:
    if origin is None:
        leases.finish_job(session, lease, JobState.COMPLETED, reason, None, now)
        return
    error = None if origin.error is None else ": ".join(origin.error)
    leases.finish_job(session, lease, origin.state, origin.stop_reason, error, now)
    job = leases.holding(session, lease)
    job.created_at, job.started_at, job.finished_at = origin.created_at, origin.started_at, origin.finished_at


def _check(spec: JobSpec, finished: Sequence[FinishedTask]) -> None:
    if [t.workload.key for t in spec.tasks] != [f.task.workload.key for f in finished]:
        raise ValueError("the finished tasks are not the job's tasks")
    if sum(len(f.trials) for f in finished) > spec.max_trials:
        raise ValueError(f"more trials than the job's max_trials {spec.max_trials}")
    for item in finished:
        if len({t.candidate.key for t in item.trials}) != len(item.trials):
            raise ValueError(f"a candidate is there twice for {item.task.key}")


def _add_trials(session: Session, lease: Lease, task_id: int, finished: Sequence[FinishedTrial], now: float) -> None:
    """What `db.trials` writes for reserving all of them and then committing one after another."""
    job = leases.working(session, lease)
    task = leases.leased_task(session, job, task_id)
    touch(job, now)
    if not finished:
        return
    first = job.next_ordinal
    rows = [_trial_values(job, task, lease, first + i, trial) for i, trial in enumerate(finished)]
    job.next_ordinal += len(rows)
    connection = session.connection()
    ids = connection.execute(_INSERT_TRIALS, rows).scalars().all()
    measured = list(_measurement_values(task, lease, ids, finished, now))
    connection.execute(_INSERT_MEASUREMENTS, measured)
    told = zip(ids, finished, rows, measured, strict=True)
    connection.execute(_INSERT_EVENTS, [event for row in told for event in _events(job, task, *row, now)])
    job.trials_done += len(rows)
    task.trials += len(rows)
    for trial in finished:
        _count(session, job, trial.measurement.outcome.value)
    session.flush()


def _trial_values(job: JobRow, task: TaskRow, lease: Lease, ordinal: int, trial: FinishedTrial) -> dict[str, object]:
    measurement = trial.measurement
    low, high = map(finite, measurement.ci95_secs or (None, None))
    started, finished = map(finite, measurement.interval or (None, None))
    return {
        "job_id": job.id,
        "task_id": task.id,
        "ordinal": ordinal,
        "attempt": 0,
        "candidate": canonical(trial.candidate.to_json()),
        "candidate_key": trial.candidate.key,
        "predicted_score": finite(trial.predicted_score),
        "token": lease.token,
        "pending": False,
        "measured_attempt": 0,
        "outcome": measurement.outcome.value,
        "latency_s": measurement.latency_s,
        "ci95_low_s": low,
        "ci95_high_s": high,
        "error": clean(measurement.error),
        "device_id": clean(measurement.observation.device_id) or None,
        "started_at": started,
        "finished_at": finished,
    }


def _measurement_values(
    task: TaskRow, lease: Lease, ids: Sequence[int], finished: Sequence[FinishedTrial], now: float
) -> Iterator[dict[str, object]]:
    for trial_id, trial in zip(ids, finished, strict=True):
        latency = trial.measurement.latency_s
        improved = latency is not None and (task.best_measured_s is None or latency < task.best_measured_s)
        if improved:
            task.best_measured_s = latency
        task.measurements += 1
        yield {
            "trial_id": trial_id,
            "attempt": 0,
            "task_id": task.id,
            "op": task.op,
            "target_kind": task.target_kind,
            "token": lease.token,
            "measurement": measurement_text(trial.measurement),
            "artifact": trial.artifact,
            "latency_s": latency,
            "committed_at": now,
            "sequence": task.measurements,
            "level": level_of(task.measurements),
            "improved": improved,
            "best_latency_s": task.best_measured_s,
        }


def _events(
    job: JobRow,
    task: TaskRow,
    trial_id: int,
    trial: FinishedTrial,
    row: Mapping[str, object],
    measured: Mapping[str, object],
    now: float,
) -> Iterator[dict[str, object]]:
    """The trial's event and, where it was the best so far, that one too."""
    yield _event(job, "trial", _trial_body(task, trial_id, trial, row), now)
    if measured["improved"]:
        data = {"task": task.position, "latency_s": row["latency_s"], "trial": trial_id, "number": row["ordinal"]}
        yield _event(job, "best", data, now)


def _event(job: JobRow, kind: str, data: Mapping[str, object], now: float) -> dict[str, object]:
    job.last_event += 1
    return {"job_id": job.id, "sequence": job.last_event, "kind": kind, "data": dump(data), "at": now}


def _trial_body(task: TaskRow, trial_id: int, trial: FinishedTrial, row: Mapping[str, object]) -> dict[str, object]:
    """As `db.trial_views.trial_body`, without a mapped object for each of many."""
    same = ("outcome", "latency_s", "predicted_score", "error", "started_at", "finished_at")
    low, high = row["ci95_low_s"], row["ci95_high_s"]
    return {
        "id": trial_id,
        "number": row["ordinal"],
        "task": task.position,
        "attempt": 0,
        "sketch": trial.candidate.sketch,
        "sketch_version": trial.candidate.version,
        "knobs": trial.candidate.knobs,
        "latency_ci95_s": None if low is None or high is None else (low, high),
        "device": row["device_id"],
        **{name: row[name] for name in same},
    }


def _count(session: Session, job: JobRow, outcome: str) -> None:
    row = session.get(OutcomeRow, (job.id, outcome))
    if row is None:
        row = OutcomeRow(job_id=job.id, outcome=outcome, trials=0)
        session.add(row)
        session.flush()
    row.trials += 1
