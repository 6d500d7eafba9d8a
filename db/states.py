"""The one place where a job changes its state."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import events, shares
from db.mapping import clean
from db.tables import JobRow
from tuner.job import FINAL, TRANSITIONS, JobState, StopReason
from tuner.views import Conflict, NotFound

# Runners renew their leases every second: one that was silent for longer was stopped, or the clock jumped.
MAX_SILENCE_S = 60.0


def locked_job(session: Session, job_id: str) -> JobRow:
    """The job's row under its lock until the transaction ends; NotFound. (SQLite's lock is the whole database's.)"""
    row = session.scalars(select(JobRow).where(JobRow.id == job_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"no job {job_id}")
    return row


def transition(
    session: Session,
    job: JobRow,
    to: JobState,
    now: float,
    reason: StopReason | None = None,
    error: tuple[str, str] | None = None,
) -> None:
    """Move the locked job to `to` along `tuner.job.TRANSITIONS`, with its event; Conflict where there is no way."""
    state = JobState(job.state)
    if to not in TRANSITIONS[state]:
        raise Conflict(f"job {job.id} is {state.value}: it cannot become {to.value}")
    if state is JobState.RUNNING:
        _end_run(job)
        shares.charge(job, job.elapsed_s)
    if state is JobState.PAUSED:
        shares.join(session, job)
    job.state = to.value
    job.waiting = to in (JobState.QUEUED, JobState.INTERRUPTED)
    if to is JobState.RUNNING:
        job.started_at = job.started_at if job.started_at is not None else now
        job.running_since = job.last_seen_at = now
    if to in FINAL:
        job.finished_at = now
    job.stop_reason = reason.value if reason else None
    if error is not None:
        job.error_code, job.error_message = error[0], clean(error[1])
    data: dict[str, object] = {"state": to.value, "stop_reason": job.stop_reason}
    data["error"] = {"code": job.error_code, "message": job.error_message} if job.error_code else None
    events.append(session, job, "job", data, now)


def touch(job: JobRow, now: float) -> None:
    """The runner was heard of: the time it has worked counts up to here, even if it is never heard of again. A clock
    that jumped counts for no more than a runner can have been silent for, and back counts for nothing."""
    if job.running_since is not None and job.last_seen_at is not None:
        job.elapsed_s += min(max(0.0, now - job.last_seen_at), MAX_SILENCE_S)
        job.running_since = now
    job.last_seen_at = now


def elapsed(job: JobRow) -> float:
    """Seconds for which runners have worked on the job, up to when the present one was last heard of."""
    return job.elapsed_s


def _end_run(job: JobRow) -> None:
    job.running_since = None
    job.lease_runner = None
    job.lease_expires_at = None
