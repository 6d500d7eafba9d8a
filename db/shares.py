"""Fair sharing of runners between jobs: start-time fair queueing over the seconds that runners spend on a job.

A job's virtual time is its runner seconds divided by its weight, counted from where it joined the others. Jobs of a
higher priority go first; among equals the one with the least virtual time does, then the oldest. So each of several
jobs of one priority gets runner time in proportion to its weight, whatever their budgets, and none can starve another
of its priority. (Goyal, Vin and Cheng, "Start-time fair queueing", 1997: a job that joins, or comes back from a pause,
starts at the least virtual time of those that are there, so that nobody saves up time by being away.)

Everything is decided by rows: the same rows give the same order on every runner.
"""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.tables import WAITING, JobRow
from tuner.job import JobState

_ACTIVE = tuple(s.value for s in (JobState.QUEUED, JobState.INTERRUPTED, JobState.RUNNING))


def virtual_s(job: JobRow, elapsed_s: float) -> float:
    return job.virtual_s + max(0.0, elapsed_s - job.charged_s) / job.weight


def charge(job: JobRow, elapsed_s: float) -> None:
    """Put the seconds that runners have worked on the job since the last time on its account."""
    job.virtual_s = virtual_s(job, elapsed_s)
    job.charged_s = elapsed_s


def join(session: Session, job: JobRow) -> None:
    """The job is new, or was paused: it starts no further back than the others of its priority are now."""
    least = select(func.min(JobRow.virtual_s)).where(
        JobRow.state.in_(_ACTIVE), JobRow.claim_rank == job.claim_rank, JobRow.id != job.id
    )
    job.virtual_s = max(job.virtual_s or 0.0, session.scalar(least) or 0.0)


def should_yield(session: Session, job: JobRow, elapsed_s: float, kinds: Sequence[str], slice_over: bool) -> bool:
    """Whether a job is waiting for these kinds of devices that comes before this running one: one of a higher
    priority at any time, one of the same with less virtual time where the running one's slice is over."""
    first = session.execute(
        select(JobRow.claim_rank, JobRow.virtual_s)
        .where(WAITING, JobRow.target_kind.in_([*kinds, "auto"]))
        .order_by(JobRow.claim_rank, JobRow.virtual_s, JobRow.created_at, JobRow.id)
        .limit(1)
    ).first()
    if first is None:
        return False
    if first.claim_rank != job.claim_rank:
        return bool(first.claim_rank < job.claim_rank)
    return slice_over and bool(first.virtual_s < virtual_s(job, elapsed_s))
