"""Trials as the service shows them: pages, single ones, and the curve of the best so far."""

from sqlalchemy import Select, select, union
from sqlalchemy.orm import Session

from db import cursors
from db.mapping import candidate_of, target_of, workload_of
from db.tables import IMPROVED, JobRow, MeasurementRow, TaskRow, TrialRow
from search_space.target import Target
from search_space.workload import Workload
from tuner.outcome import Outcome
from tuner.views import NotFound, Page, ProgressPoint, TrialView

_MAX_LEVEL = 30  # no task has 2^31 measurements


def trial_body(row: TrialRow, task_index: int) -> dict[str, object]:
    """A trial as an event tells it: the fields and names of the HTTP answer."""
    candidate = candidate_of(row.candidate)
    return {
        "id": row.id,
        "number": row.ordinal,
        "task": task_index,
        "attempt": row.measured_attempt,
        "sketch": candidate.sketch,
        "sketch_version": candidate.version,
        "knobs": candidate.knobs,
        "outcome": row.outcome,
        "latency_s": row.latency_s,
        "latency_ci95_s": _interval(row),
        "predicted_score": row.predicted_score,
        "error": row.error,
        "device": row.device_id,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def _interval(row: TrialRow) -> tuple[float, float] | None:
    if row.ci95_low_s is None or row.ci95_high_s is None:
        return None
    return row.ci95_low_s, row.ci95_high_s


def _view(row: TrialRow, task_index: int) -> TrialView:
    assert row.outcome is not None
    return TrialView(
        id=row.id,
        ordinal=row.ordinal,
        task_index=task_index,
        attempt=row.measured_attempt or 0,
        candidate=candidate_of(row.candidate),
        outcome=Outcome(row.outcome),
        latency_s=row.latency_s,
        ci95_s=_interval(row),
        predicted_score=row.predicted_score,
        error=row.error,
        device_id=row.device_id,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def page_query(
    job_id: str, task_id: int | None, outcome: Outcome | None, after: int | None, limit: int, newest_first: bool = False
) -> Select[TrialRow]:
    """Measured trials of a job beyond ordinal `after`, in the order of their ordinals or against it."""
    query: Select[TrialRow] = select(TrialRow)
    if after is not None:
        query = query.where(TrialRow.ordinal < after if newest_first else TrialRow.ordinal > after)
    query = query.where(TrialRow.job_id == job_id) if task_id is None else query.where(TrialRow.task_id == task_id)
    if outcome is None:
        query = query.where(TrialRow.outcome.is_not(None))
    else:
        query = query.where(TrialRow.job_id == job_id, TrialRow.outcome == outcome.value)
    return query.order_by(TrialRow.ordinal.desc() if newest_first else TrialRow.ordinal).limit(limit)


def page(
    session: Session,
    job_id: str,
    task_index: int | None,
    outcome: Outcome | None,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Page[TrialView]:
    """One entry a trial: its last measured attempt. Trials that are still out are not listed."""
    listing = "trials-newest" if newest_first else "trials"
    key = cursors.decode(listing, cursor, int)
    task_id = None if task_index is None else _task_id(session, job_id, task_index)
    size = cursors.page_size(limit)
    query = page_query(job_id, task_id, outcome, int(key[0]) if key else None, size + 1, newest_first)
    rows = session.scalars(query).all()
    if not rows and session.get(JobRow, job_id) is None:
        raise NotFound(f"no job {job_id}")
    more = len(rows) > size
    rows = rows[:size]
    tasks = session.scalars(select(TaskRow).where(TaskRow.id.in_({row.task_id for row in rows})))
    positions = {task.id: task.position for task in tasks}
    items = [_view(row, positions[row.task_id]) for row in rows]
    return Page(items, cursors.encode(listing, (rows[-1].ordinal,)) if more else None)


def _task_id(session: Session, job_id: str, task_index: int) -> int:
    task_id = session.scalar(select(TaskRow.id).where(TaskRow.job_id == job_id, TaskRow.position == task_index))
    if task_id is None:
        raise NotFound(f"no task {task_index} in job {job_id}")
    return task_id


def single(session: Session, trial_id: int) -> tuple[TrialView, Workload, Target]:
    query = select(TrialRow, TaskRow).join(TaskRow, TaskRow.id == TrialRow.task_id).where(TrialRow.id == trial_id)
    found = session.execute(query).one_or_none() if abs(trial_id) < 2**63 else None
    if found is None or found[0].outcome is None or found[1].target is None:
        raise NotFound(f"no measured trial {trial_id}")
    row, task = found
    return _view(row, task.position), workload_of(task.workload), target_of(task.target)


def progress(session: Session, job_id: str, task_index: int, points: int) -> list[ProgressPoint]:
    """The curve in commit order, from at most about `points` rows, however many there are.

    Every improvement and the newest point are kept; the room that they leave is filled with every 2^L-th measurement,
    at the finest L that fits. Where the improvements alone are more than `points`, they all come.
    """
    task_id = _task_id(session, job_id, task_index)
    last = session.scalar(select(TaskRow.measurements).where(TaskRow.id == task_id)) or 0
    of_task = MeasurementRow.task_id == task_id
    improvements = session.scalars(select(MeasurementRow.id).where(of_task, IMPROVED).limit(max(points, 0) + 1)).all()
    room = max(points - len(improvements) - 1, 0)
    level = 0
    while last >> level > room and level <= _MAX_LEVEL:
        level += 1
    wanted = union(
        select(MeasurementRow.id).where(of_task, MeasurementRow.level >= level),
        select(MeasurementRow.id).where(of_task, IMPROVED),
        select(MeasurementRow.id).where(
            of_task, MeasurementRow.level == level_of(last), MeasurementRow.sequence == last
        ),
    ).subquery()
    rows = session.execute(
        select(MeasurementRow, TrialRow.ordinal)
        .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
        .where(MeasurementRow.id.in_(select(wanted.c.id)))
        .order_by(MeasurementRow.sequence)
    )
    return [ProgressPoint(o, task_index, m.committed_at, m.latency_s, m.best_latency_s) for m, o in rows]


def level_of(sequence: int) -> int:
    """How often 2 divides a measurement's number within its task."""
    return min(_MAX_LEVEL, max(sequence & -sequence, 1).bit_length() - 1)
