"""Old jobs go: what is removed of an ended job, and what stays.

Events always go. Records (trials with their measurements) go unless they are kept: the cost model learns from them.
Winners that lookups serve stay unless they are given up, and then their job stays too, as a shell that says where they
come from. Artifacts that no schedule names any more go with the last one. Counts for monitoring never fall.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from db import tallies
from db.states import locked_job
from db.tables import WHOLE, EventRow, JobRow, OutcomeRow, TrialRow
from db.tables_served import ArtifactRow, ScheduleRow
from tuner.job import FINAL, JobState
from tuner.views import Conflict, Keep, Removed

_SOURCE = "retention"


@dataclass(frozen=True)
class _Gone:
    removed: Removed
    digests: Sequence[str]  # of artifacts that nothing names any more


def ended_query(before: float, limit: int) -> Select[str]:
    """Ids of jobs that ended before that time and were not pruned yet, the oldest first."""
    query = select(JobRow.id).where(WHOLE, JobRow.finished_at < before)
    return query.order_by(JobRow.finished_at, JobRow.id).limit(limit)


def remove(session: Session, job_id: str, keep: Keep, now: float) -> _Gone:
    """Conflict unless the job has ended; NotFound."""
    job = locked_job(session, job_id)
    if JobState(job.state) not in FINAL:
        raise Conflict(f"job {job_id} is {job.state}: cancel it first")
    session.execute(delete(EventRow).where(EventRow.job_id == job_id))
    job.last_event = 0
    job.pruned_at = now
    if keep.records:
        return _Gone(Removed(job_id, deleted=False, trials=0, schedules=0), ())
    trials = session.scalar(select(func.count()).where(TrialRow.job_id == job_id)) or 0
    schedules, digests = _remove_schedules(session, job_id, keep)
    served = session.scalar(select(func.count()).where(ScheduleRow.job_id == job_id)) or 0
    if served:
        session.execute(delete(TrialRow).where(TrialRow.job_id == job_id))
    else:
        _remember_outcomes(session, job_id)
        session.flush()
        session.execute(delete(JobRow).where(JobRow.id == job_id))
        session.expunge(job)
    return _Gone(Removed(job_id, not served, trials, schedules), _unnamed(session, digests))


def _remove_schedules(session: Session, job_id: str, keep: Keep) -> tuple[int, list[str]]:
    """How many went, and the artifacts that they named."""
    query = select(ScheduleRow).where(ScheduleRow.job_id == job_id).order_by(ScheduleRow.id).with_for_update()
    gone = [row for row in session.scalars(query) if not (keep.winners and row.is_current)]
    for row in gone:
        session.delete(row)
    session.flush()
    for row in gone:
        if row.is_current:
            _serve_the_next(session, row, job_id)
    return len(gone), sorted({row.artifact for row in gone})


def _serve_the_next(session: Session, gone: ScheduleRow, job_id: str) -> None:
    """Another job's best for the same workload and identity takes the place of the one that went."""
    after = session.scalars(
        select(ScheduleRow)
        .where(
            ScheduleRow.workload_key == gone.workload_key,
            ScheduleRow.identity_key == gone.identity_key,
            ScheduleRow.job_id != job_id,
        )
        .order_by(ScheduleRow.sketch_version.desc(), ScheduleRow.latency_s, ScheduleRow.id)
        .limit(1)
        .with_for_update()
    ).first()
    if after is not None:
        after.is_current = True
        session.flush()


def _unnamed(session: Session, digests: Sequence[str]) -> list[str]:
    """Delete the rows of those artifacts that no schedule names; their digests. Locked first, asked then: a promotion
    of the same bytes waits for us, or we see its schedule."""
    query = select(ArtifactRow.digest).where(ArtifactRow.digest.in_(digests)).order_by(ArtifactRow.digest)
    session.execute(query.with_for_update())
    named = set(session.scalars(select(ScheduleRow.artifact).where(ScheduleRow.artifact.in_(digests))))
    gone = [d for d in digests if d not in named]
    session.execute(delete(ArtifactRow).where(ArtifactRow.digest.in_(gone)))
    return gone


def _remember_outcomes(session: Session, job_id: str) -> None:
    counts = session.execute(select(OutcomeRow.outcome, OutcomeRow.trials).where(OutcomeRow.job_id == job_id))
    tallies.add(session, _SOURCE, {(tallies.TRIALS, outcome): float(n) for outcome, n in counts if n})
