"""Who works on a job: claims, renewals and ends of leases with fencing tokens (the contract: `tuner.ports`)."""

import re
from collections.abc import Sequence

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session, undefer

from db import events, shares, tallies
from db.mapping import spec_of, target_of
from db.states import MAX_SILENCE_S, elapsed, locked_job, touch, transition
from db.tables import WAITING, JobRow, TaskRow
from search_space.target import Target
from tuner.job import FINAL, JobState, StopReason
from tuner.ports import Lease, LeasedTask, LeaseLost
from tuner.views import NotFound

_CODED = re.compile(r"([a-z][a-z_]{0,63}): (.+)", re.DOTALL)


def claim(
    session: Session,
    runner_id: str,
    kinds: Sequence[str],
    lease_s: float,
    now: float,
    only: str | None = None,
    targets: Sequence[Target] = (),
) -> Lease | None:
    """Lease the next job. Rows that another runner is claiming at this moment are skipped, not waited for."""
    interrupt_expired(session, now)
    job = _next_job(session, kinds, only, targets) if kinds else None
    if job is None:
        return None
    transition(session, job, JobState.RUNNING, now)
    job.lease_token += 1
    job.lease_runner = runner_id
    job.lease_expires_at = now + lease_s
    return Lease(job.id, runner_id, job.lease_token, spec_of(job.spec), _leased_tasks(session, job.id), elapsed(job))


def _next_job(session: Session, kinds: Sequence[str], only: str | None, targets: Sequence[Target]) -> JobRow | None:
    """The first job that one of the targets can run. Those that none can are passed by, one row at a time: they are
    few, and no more is locked than is looked at."""
    passed: list[str] = []
    while True:
        job = session.scalars(claim_query(kinds, only, passed)).one_or_none()
        if job is None or not targets or shares.can_run(session, job.id, job.spec, targets):
            return job
        passed.append(job.id)


def claim_query(kinds: Sequence[str], only: str | None = None, passed: Sequence[str] = ()) -> Select[JobRow]:
    """The first job that these kinds of devices can run, by priority, then fair share, then age; `only` leaves out all
    but one, `passed` those that were looked at."""
    query = (
        select(JobRow)
        .options(undefer(JobRow.spec))
        .where(WAITING, JobRow.target_kind.in_([*kinds, "auto"]))
        .order_by(JobRow.claim_rank, JobRow.virtual_s, JobRow.created_at, JobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if passed:
        query = query.where(JobRow.id.not_in(passed))
    return query if only is None else query.where(JobRow.id == only)


def expired_query(now: float) -> Select[JobRow]:
    """Leases that have run out, and those renewed in the future: the clock jumped back since then, and a dead runner's
    job would wait until it has caught up. (A living runner's next renewal puts its own right within a second.)"""
    running = JobRow.state == JobState.RUNNING.value
    over = or_(JobRow.lease_expires_at <= now, JobRow.last_seen_at > now + MAX_SILENCE_S)
    return select(JobRow).where(running, over).with_for_update(skip_locked=True)


def interrupt_expired(session: Session, now: float) -> int:
    """Mark running jobs whose lease has run out as interrupted, so that they can be claimed; how many there were."""
    expired = session.scalars(expired_query(now)).all()
    for job in expired:
        transition(session, job, JobState.INTERRUPTED, now)
    session.flush()
    if expired:
        tallies.add(session, "leases", {(tallies.LEASES_LOST, "expired"): float(len(expired))})
    return len(expired)


def _leased_tasks(session: Session, job_id: str) -> list[LeasedTask]:
    rows = session.execute(
        select(TaskRow.id, TaskRow.position, TaskRow.weight, TaskRow.stop_reason, TaskRow.target)
        .where(TaskRow.job_id == job_id)
        .order_by(TaskRow.position)
    )
    return [
        LeasedTask(
            task_id,
            position,
            weight,
            StopReason(reason) if reason else None,
            target_of(target) if target else None,
        )
        for task_id, position, weight, reason, target in rows
    ]


def holding(session: Session, lease: Lease) -> JobRow:
    """The lease's job, locked, whatever its state; LeaseLost when a newer token was given out."""
    try:
        job = locked_job(session, lease.job_id)
    except NotFound as fault:
        raise LeaseLost(str(fault)) from None
    if job.lease_token != lease.token:
        raise LeaseLost(f"job {job.id} was claimed again: token {lease.token} is older than {job.lease_token}")
    return job


def working(session: Session, lease: Lease) -> JobRow:
    """As `holding`, and LeaseLost unless the job is running: after a cancel or a pause nothing is written."""
    job = holding(session, lease)
    if job.state != JobState.RUNNING:
        raise LeaseLost(f"job {job.id} is {job.state}: stop working on it")
    return job


def leased_task(session: Session, job: JobRow, task_id: int) -> TaskRow:
    task = session.get(TaskRow, task_id)
    if task is None or task.job_id != job.id:
        raise NotFound(f"job {job.id} has no task {task_id}")
    return task


def renew(session: Session, lease: Lease, lease_s: float, now: float) -> JobState:
    job = holding(session, lease)
    state = JobState(job.state)
    if state is JobState.RUNNING:
        job.lease_expires_at = now + lease_s
        touch(job, now)
    elif state in (JobState.QUEUED, JobState.INTERRUPTED):
        raise LeaseLost(f"job {job.id} is {state.value}: the lease has ended")
    return state


def release(session: Session, lease: Lease, now: float) -> None:
    job = holding(session, lease)
    if job.state == JobState.RUNNING:
        touch(job, now)
        transition(session, job, JobState.INTERRUPTED, now)


def yield_job(
    session: Session, lease: Lease, kinds: Sequence[str], slice_s: float, now: float, targets: Sequence[Target] = ()
) -> bool:
    """Put the job back into the queue where another one's turn has come (`db.shares`); whether it was. A slice counts
    from the claim."""
    job = holding(session, lease)
    if job.state != JobState.RUNNING:
        return False
    touch(job, now)
    spent_s = elapsed(job) - lease.elapsed_s
    if not shares.should_yield(session, job, elapsed(job), kinds, targets, spent_s >= slice_s):
        return False
    transition(session, job, JobState.QUEUED, now)
    return True


def finish_job(
    session: Session, lease: Lease, state: JobState, reason: StopReason | None, error: str | None, now: float
) -> None:
    """End the job. Telling the present final state again changes nothing; another one than it has is LeaseLost."""
    job = holding(session, lease)
    if job.state == state and state in FINAL:
        return
    if job.state != JobState.RUNNING:
        raise LeaseLost(f"job {job.id} is {job.state}: it cannot be finished as {state.value}")
    touch(job, now)
    transition(session, job, state, now, reason, _coded(error, reason))


def _coded(error: str | None, reason: StopReason | None) -> tuple[str, str] | None:
    """(code, message): an error that starts with ``code: `` carries its own code."""
    if error is None:
        return None
    if found := _CODED.fullmatch(error):
        return found[1], found[2]
    return (reason.value if reason else "failed"), error


def finish_task(session: Session, lease: Lease, task_id: int, reason: StopReason, now: float) -> None:
    job = working(session, lease)
    task = leased_task(session, job, task_id)
    if task.stop_reason == reason.value:
        return
    task.stop_reason = reason.value
    touch(job, now)
    events.append(session, job, "job", {"task": task.position, "stop_reason": reason.value}, now)
