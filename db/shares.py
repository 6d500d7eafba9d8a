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

from db.mapping import spec_of, target_of
from db.tables import WAITING, JobRow, TaskRow
from search_space.target import Target
from tuner.job import JobState

# Of jobs that wait for another arch or model than is here, so many are looked past.
_LOOKED_AT = 50
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


def should_yield(
    session: Session, job: JobRow, elapsed_s: float, kinds: Sequence[str], targets: Sequence[Target], slice_over: bool
) -> bool:
    """Whether a job that one of the targets can run waits and comes before this running one: one of a higher priority
    at any time, one of the same with less virtual time where the running one's slice is over."""
    query = (
        select(JobRow.id, JobRow.claim_rank, JobRow.virtual_s, JobRow.spec)
        .where(WAITING, JobRow.target_kind.in_([*kinds, "auto"]), JobRow.claim_rank <= job.claim_rank)
        .order_by(JobRow.claim_rank, JobRow.virtual_s, JobRow.created_at, JobRow.id)
        .limit(_LOOKED_AT)
    )
    for waiting in session.execute(query):
        comes_first = waiting.claim_rank < job.claim_rank or (
            slice_over and waiting.virtual_s < virtual_s(job, elapsed_s)
        )
        if not comes_first:
            return False  # nor does any after it
        if not targets or can_run(session, waiting.id, waiting.spec, targets):
            return True
    return False


def can_run(session: Session, job_id: str, spec: str, targets: Sequence[Target]) -> bool:
    """Whether one of the targets is what the job asks for, and each that its tasks are bound to is among them."""
    asked = spec_of(spec).target
    bound = session.scalars(
        select(TaskRow.target).where(TaskRow.job_id == job_id, TaskRow.target.is_not(None)).distinct()
    )
    return any(asked.matches(t) for t in targets) and all(target_of(b) in targets for b in bound if b)
