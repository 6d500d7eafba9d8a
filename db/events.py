"""Events of a job, written in the transaction of the change that they tell."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.cursors import page_size
from db.mapping import dump, load
from db.tables import EventRow, JobRow
from tuner.views import Event, NotFound

KINDS = ("job", "trial", "best", "model", "device")


def append(session: Session, job: JobRow, kind: str, data: Mapping[str, object], at: float) -> None:
    """Add the job's next event. The caller holds the lock of the job's row: sequences have no gap and no double."""
    assert kind in KINDS
    job.last_event += 1
    session.add(EventRow(job_id=job.id, sequence=job.last_event, kind=kind, data=dump(data), at=at))


def events(session: Session, job_id: str, after: int, limit: int) -> Sequence[Event]:
    """Up to `limit` events with a sequence above `after`, in order."""
    rows = session.scalars(
        select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.sequence > after)
        .order_by(EventRow.sequence)
        .limit(page_size(limit))
    ).all()
    if not rows and session.get(JobRow, job_id) is None:
        raise NotFound(f"no job {job_id}")
    return [Event(row.sequence, row.kind, load(row.data), row.at) for row in rows]
