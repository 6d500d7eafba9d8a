"""Counts of what lookups found, per shape: nobody should run for a year on tuned files that nothing matches."""

from sqlalchemy import or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db import cursors
from db.mapping import canonical, digest, query_of, workload_of
from db.tables_served import LookupRow
from search_space.target import TargetQuery
from search_space.workload import Workload
from tuner.views import LookupCount, Page

STATUSES = ("exact", "nearest", "stale", "missed")


def add(session: Session, workload: Workload, target: TargetQuery, status: str, now: float, count: int) -> None:
    """`count` more; a single statement, so that two at once both count."""
    if status not in STATUSES:
        raise ValueError(f"a lookup ends as one of {', '.join(STATUSES)}, not {status!r}")
    text = canonical(target.to_json())
    values = {
        "workload_key": workload.key,
        "workload": canonical(workload.to_json()),
        "target": text,
        "target_key": digest(text)[:16],
        **{name: count * (name == status) for name in STATUSES},
        "last_at": now,
    }
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    counter = getattr(LookupRow, status)
    statement = insert(LookupRow).values(values)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["workload_key", "target_key"], set_={status: counter + count, "last_at": now}
        )
    )


def page(session: Session, limit: int, cursor: str | None) -> Page[LookupCount]:
    """The shapes that were looked up last come first."""
    size = cursors.page_size(limit)
    query = select(LookupRow)
    if after := cursors.decode("lookups", cursor, float, int):
        at, last = after
        query = query.where(LookupRow.last_at <= at, or_(LookupRow.last_at < at, LookupRow.id < last))
    rows = session.scalars(query.order_by(LookupRow.last_at.desc(), LookupRow.id.desc()).limit(size + 1)).all()
    more = len(rows) > size
    rows = rows[:size]
    items = [
        LookupCount(
            workload_of(row.workload), query_of(row.target), {n: getattr(row, n) for n in STATUSES}, row.last_at
        )
        for row in rows
    ]
    return Page(items, cursors.encode("lookups", (float(rows[-1].last_at), rows[-1].id)) if more else None)
