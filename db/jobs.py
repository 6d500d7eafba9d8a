"""Jobs as the service sees them: created, listed, cancelled, paused, resumed, counted."""

import json
import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import func, insert, or_, select
from sqlalchemy.orm import Session, undefer

from db import cursors, events, keys, shares, tallies
from db.mapping import best_of, canonical, digest, spec_of, target_of, workload_of
from db.states import elapsed, locked_job, transition
from db.tables import JobRow, OutcomeRow, TaskRow
from db.tables_served import LookupRow, ScheduleRow
from tuner.access import Owner
from tuner.job import FINAL, JobSpec, JobState, StopReason
from tuner.outcome import Outcome
from tuner.views import Conflict, JobView, NotFound, Page, StoreCounts, TaskView

S = JobState


def create(
    session: Session,
    spec: JobSpec,
    idempotency_key: str | None,
    now: float,
    owner: Owner | None = None,
    job_id: str | None = None,
) -> tuple[JobView, bool]:
    """Of two at once with one key the second finds its unique constraint taken, and is run again (`Transactions`).
    LimitReached where the owner has as much open as it may."""
    text = canonical(spec.to_json())
    key = None if idempotency_key is None else digest(_told_by(owner) + idempotency_key)
    if key is not None:
        known = session.execute(select(JobRow.id, JobRow.spec_digest).where(JobRow.idempotency_key == key)).first()
        if known is not None:
            if known.spec_digest != digest(text):
                raise Conflict("the idempotency key was used for another request")
            return view(session, known.id), False
    if owner is not None:
        keys.check_room(session, owner, spec.max_trials)
    job = JobRow(
        id=job_id or f"job_{uuid.uuid4().hex[:20]}",
        spec=text,
        spec_digest=digest(text),
        idempotency_key=key,
        target_kind=spec.target.kind,
        state=S.QUEUED.value,
        claim_rank=-spec.priority,
        weight=spec.weight,
        key_id=None if owner is None else owner.key_id,
        created_at=now,
        max_trials=spec.max_trials,
        last_event=0,
    )
    shares.join(session, job)
    session.add(job)
    session.flush()
    session.execute(insert(TaskRow), [_task_values(job.id, i, spec) for i in range(len(spec.tasks))])
    events.append(session, job, "job", {"state": job.state, "stop_reason": None, "error": None}, now)
    session.flush()
    return view(session, job.id), True


def _told_by(owner: Owner | None) -> str:
    """Two API keys may choose the same idempotency key without meeting."""
    return f"{owner.key_id}:" if owner is not None and owner.key_id.startswith("key_") else ""


def _task_values(job_id: str, position: int, spec: JobSpec) -> dict[str, object]:
    workload = spec.tasks[position].workload
    return {
        "job_id": job_id,
        "position": position,
        "workload": canonical(workload.to_json()),
        "workload_key": workload.key,
        "op": workload.op,
        "weight": spec.tasks[position].weight,
    }


def view(session: Session, job_id: str) -> JobView:
    row = session.get(JobRow, job_id, options=[undefer(JobRow.spec)])
    if row is None:
        raise NotFound(f"no job {job_id}")
    return _views(session, [row])[0]


def page(session: Session, state: JobState | None, limit: int, cursor: str | None) -> Page[JobView]:
    size = cursors.page_size(limit)
    query = select(JobRow).options(undefer(JobRow.spec))
    if state is not None:
        query = query.where(JobRow.state == state.value)
    if after := cursors.decode("jobs", cursor, float, str):
        at, last = after
        query = query.where(JobRow.created_at <= at, or_(JobRow.created_at < at, JobRow.id < last))
    rows = session.scalars(query.order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(size + 1)).all()
    more = len(rows) > size
    rows = rows[:size]
    following = cursors.encode("jobs", (float(rows[-1].created_at), rows[-1].id)) if more else None
    return Page(_views(session, rows), following)


def _views(session: Session, rows: Sequence[JobRow]) -> list[JobView]:
    ids = [row.id for row in rows]
    tasks: dict[str, list[TaskView]] = {i: [] for i in ids}
    query = select(TaskRow).where(TaskRow.job_id.in_(ids)).order_by(TaskRow.job_id, TaskRow.position)
    for task in session.scalars(query):
        tasks[task.job_id].append(_task_view(task))
    outcomes: dict[str, dict[Outcome, int]] = {i: {} for i in ids}
    for row in session.scalars(select(OutcomeRow).where(OutcomeRow.job_id.in_(ids), OutcomeRow.trials > 0)):
        outcomes[row.job_id][Outcome(row.outcome)] = row.trials
    return [_view(row, tasks[row.id], outcomes[row.id]) for row in rows]


def _view(row: JobRow, tasks: Sequence[TaskView], outcomes: Mapping[Outcome, int]) -> JobView:
    return JobView(
        id=row.id,
        spec=spec_of(row.spec),
        state=S(row.state),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        error=(row.error_code, row.error_message or "") if row.error_code else None,
        trials_done=row.trials_done,
        trials_ok=outcomes.get(Outcome.OK, 0),
        failed_by={o: n for o, n in outcomes.items() if o is not Outcome.OK},
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        tasks=tasks,
        phase_seconds=json.loads(row.phase_seconds),
        elapsed_s=elapsed(row),
        last_event=row.last_event,
        key_id=row.key_id,
        pruned_at=row.pruned_at,
    )


def _task_view(task: TaskRow) -> TaskView:
    best = best_of(task.best) if task.best else None
    return TaskView(
        index=task.position,
        workload=workload_of(task.workload),
        weight=task.weight,
        trials=task.trials,
        target=target_of(task.target) if task.target else None,
        best_latency_s=best.latency_s if best else task.best_measured_s,
        best=best,
        schedule_id=task.schedule_id,
        baseline_name=task.baseline_name,
        baseline_latency_s=task.baseline_latency_s,
        stop_reason=StopReason(task.stop_reason) if task.stop_reason else None,
    )


def cancel(session: Session, job_id: str, now: float) -> JobView:
    job = locked_job(session, job_id)
    if job.state != S.CANCELLED:
        transition(session, job, S.CANCELLED, now, StopReason.CANCELLED)
    return _after(session, job)


def pause(session: Session, job_id: str, now: float) -> JobView:
    job = locked_job(session, job_id)
    if job.state != S.PAUSED:
        transition(session, job, S.PAUSED, now)
    return _after(session, job)


def resume(session: Session, job_id: str, now: float) -> JobView:
    """Idempotent: a job that is queued or running already goes on."""
    job = locked_job(session, job_id)
    if job.state not in (S.QUEUED, S.RUNNING):
        transition(session, job, S.QUEUED, now)
    return _after(session, job)


def _after(session: Session, job: JobRow) -> JobView:
    session.flush()
    return view(session, job.id)


def counts(session: Session) -> StoreCounts:
    states = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all()
    trials = session.execute(select(OutcomeRow.outcome, func.sum(OutcomeRow.trials)).group_by(OutcomeRow.outcome)).all()
    present = {row.outcome: int(row[1]) for row in trials}
    gone = tallies.totals(session)
    schedules = session.scalar(select(func.count()).select_from(ScheduleRow)) or 0
    left = func.coalesce(func.sum(JobRow.max_trials - JobRow.trials_done), 0)
    open_trials = session.scalar(select(left).where(JobRow.state.in_([x.value for x in S if x not in FINAL]))) or 0
    names = ("exact", "nearest", "stale", "missed")
    sums = session.execute(select(*(func.coalesce(func.sum(getattr(LookupRow, n)), 0) for n in names))).one()
    return StoreCounts(
        jobs={S(state): n for state, n in states},
        trials={o: int(present.get(o.value, 0) + gone.get((tallies.TRIALS, o.value), 0)) for o in Outcome},
        schedules=schedules,
        lookups={name: int(n) for name, n in zip(names, sums, strict=True)},
        open_trials=int(open_trials),
        leases_lost=int(gone.get((tallies.LEASES_LOST, "expired"), 0)),
        seconds={name: tallies.histogram(gone, name) for name in tallies.BUCKETS},
        device_alive_s={label: v for (name, label), v in gone.items() if name == tallies.ALIVE},
        device_busy_s={label: v for (name, label), v in gone.items() if name == tallies.BUSY},
    )
