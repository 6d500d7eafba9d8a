"""Counts of what happened, each added to by its source alone, so that no two writers wait for one row."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.tables_served import TallyRow

Key = tuple[str, str]  # (name, label)

TRIALS = "trials"  # by outcome, of jobs that are gone
LEASES_LOST = "leases_lost"
BUILD, MEASURE = "build_seconds", "measure_seconds"  # histograms: label is the bucket's upper bound, or "sum"
ALIVE, BUSY = "device_alive_seconds", "device_busy_seconds"  # by kind of device


def add(session: Session, source: str, amounts: Mapping[Key, float]) -> None:
    """Each is one statement's upsert: two processes of one source both count."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    for (name, label), amount in sorted(amounts.items()):
        statement = insert(TallyRow).values(source=source, name=name, label=label, value=amount)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["source", "name", "label"], set_={"value": TallyRow.value + amount}
            )
        )


def totals(session: Session) -> dict[Key, float]:
    """Over all sources."""
    query = select(TallyRow.name, TallyRow.label, func.sum(TallyRow.value)).group_by(TallyRow.name, TallyRow.label)
    return {(name, label): float(value) for name, label, value in session.execute(query)}
