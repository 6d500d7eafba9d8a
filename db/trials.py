"""Trials as a runner writes them: reserved from the budget, tried again, committed."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import events
from db.leases import leased_task, working
from db.mapping import candidate_of, canonical, clean, finite, measurement_text
from db.states import touch
from db.tables import PENDING, JobRow, MeasurementRow, OutcomeRow, TaskRow, TrialRow
from db.trial_views import level_of, trial_body
from search_space.candidate import Candidate
from tuner.ports import Lease, Measured, Trial
from tuner.views import Conflict, NotFound


def reserve(
    session: Session, lease: Lease, task_id: int, candidates: Sequence[tuple[Candidate, float | None]], now: float
) -> list[Trial]:
    """First every trial of the task that an older token left open, then new ordinals while the budget lasts.

    A candidate that the task has had before takes nothing and is not returned. The counter is the job row's, which
    is locked: no two runners can take the same ordinal, and the budget is never passed (O12).
    """
    job = working(session, lease)
    task = leased_task(session, job, task_id)
    touch(job, now)
    again = _left_open(session, lease, task)
    wanted: dict[str, tuple[Candidate, float | None]] = {}
    for candidate, score in candidates:
        wanted.setdefault(candidate.key, (candidate, score))
    known = session.scalars(
        select(TrialRow.candidate_key).where(TrialRow.task_id == task.id, TrialRow.candidate_key.in_(wanted))
    )
    for key in known:
        del wanted[key]
    fresh = list(wanted.items())[: job.max_trials - job.next_ordinal]
    rows = [
        TrialRow(
            job_id=job.id,
            task_id=task.id,
            ordinal=job.next_ordinal + i,
            attempt=0,
            candidate=canonical(candidate.to_json()),
            candidate_key=key,
            predicted_score=finite(score),
            token=lease.token,
            pending=True,
        )
        for i, (key, (candidate, score)) in enumerate(fresh)
    ]
    job.next_ordinal += len(rows)
    session.add_all(rows)
    session.flush()
    return [_trial(row) for row in [*again, *rows]]


def _left_open(session: Session, lease: Lease, task: TaskRow) -> list[TrialRow]:
    rows = session.scalars(
        select(TrialRow)
        .where(TrialRow.task_id == task.id, PENDING, TrialRow.token < lease.token)
        .order_by(TrialRow.ordinal)
    ).all()
    for row in rows:
        row.token = lease.token
    return list(rows)


def _trial(row: TrialRow) -> Trial:
    return Trial(row.id, row.ordinal, row.attempt, candidate_of(row.candidate), row.predicted_score)


def retry(session: Session, lease: Lease, trial: Trial, now: float) -> Trial:
    """The trial's next attempt. Asking twice for the attempt after `trial.attempt` gives the same one."""
    job = working(session, lease)
    row = _trial_row(session, job, trial.id)
    touch(job, now)
    if trial.attempt > row.attempt:
        raise Conflict(f"trial {row.id} has no attempt {trial.attempt} yet")
    if trial.attempt == row.attempt:
        row.attempt += 1
        row.pending = True
        row.token = lease.token
    return _trial(row)


def _trial_row(session: Session, job: JobRow, trial_id: int) -> TrialRow:
    row = session.get(TrialRow, trial_id)
    if row is None or row.job_id != job.id:
        raise NotFound(f"job {job.id} has no trial {trial_id}")
    return row


def commit(session: Session, lease: Lease, task_id: int, measured: Measured, now: float) -> None:
    """Store one attempt with all that follows from it: the trial's outcome, the counters, the curve, the events."""
    job = working(session, lease)
    row = _trial_row(session, job, measured.trial.id)
    task = leased_task(session, job, task_id)
    if row.task_id != task.id:
        raise NotFound(f"task {task_id} has no trial {row.id}")
    attempt = measured.trial.attempt
    if attempt > row.attempt:
        raise Conflict(f"trial {row.id} has no attempt {attempt} yet")
    if task.target_kind is None:
        raise Conflict(f"task {task_id} is not bound to a target: bind it before committing")
    done = select(MeasurementRow.id).where(MeasurementRow.trial_id == row.id, MeasurementRow.attempt == attempt)
    if session.scalar(done) is not None:
        return
    touch(job, now)
    improved = _add_measurement(session, lease, task, row, measured, now)
    if row.measured_attempt is None or attempt > row.measured_attempt:
        _show(session, job, task, row, measured)
        events.append(session, job, "trial", trial_body(row, task.position), now)
    if improved:
        data = {"task": task.position, "latency_s": task.best_measured_s, "trial": row.id, "number": row.ordinal}
        events.append(session, job, "best", data, now)


def _add_measurement(
    session: Session, lease: Lease, task: TaskRow, row: TrialRow, measured: Measured, now: float
) -> bool:
    """Add the row and its point on the task's curve; whether it is the best valid time so far."""
    latency = measured.measurement.latency_s
    improved = latency is not None and (task.best_measured_s is None or latency < task.best_measured_s)
    if improved:
        task.best_measured_s = latency
    task.measurements += 1
    assert task.target_kind is not None
    session.add(
        MeasurementRow(
            trial_id=row.id,
            attempt=measured.trial.attempt,
            task_id=task.id,
            op=task.op,
            target_kind=task.target_kind,
            token=lease.token,
            measurement=measurement_text(measured.measurement),
            artifact=measured.artifact,
            latency_s=latency,
            committed_at=now,
            sequence=task.measurements,
            level=level_of(task.measurements),
            improved=improved,
            best_latency_s=task.best_measured_s,
        )
    )
    return improved


def _show(session: Session, job: JobRow, task: TaskRow, row: TrialRow, measured: Measured) -> None:
    """Make the attempt the trial's outcome; an earlier attempt's outcome no longer counts."""
    measurement = measured.measurement
    if row.outcome is None:
        job.trials_done += 1
        task.trials += 1
    else:
        _count(session, job, row.outcome, -1)
    _count(session, job, measurement.outcome.value, 1)
    row.measured_attempt = measured.trial.attempt
    row.pending = row.pending and measured.trial.attempt != row.attempt
    row.outcome = measurement.outcome.value
    row.latency_s = measurement.latency_s
    row.ci95_low_s, row.ci95_high_s = map(finite, measurement.ci95_secs or (None, None))
    row.error = clean(measurement.error)
    row.device_id = clean(measurement.observation.device_id) or None
    row.started_at, row.finished_at = map(finite, measurement.interval or (None, None))


def _count(session: Session, job: JobRow, outcome: str, change: int) -> None:
    """The job's row lock makes the read and the write one."""
    row = session.get(OutcomeRow, (job.id, outcome))
    if row is None:
        session.add(OutcomeRow(job_id=job.id, outcome=outcome, trials=change))
    else:
        row.trials += change
