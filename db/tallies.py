"""Counts of what happened, each added to by its source alone, so that no two writers wait for one row."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.tables_served import TallyRow
from tuner.measurement import Measurement

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


BUCKETS: Mapping[str, tuple[float, ...]] = {
    BUILD: (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0),
    MEASURE: (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0),
}
SUM, INFINITY = "sum", "+Inf"


def histogram(amounts: Mapping[Key, float], name: str) -> tuple[Sequence[tuple[str, float]], float]:
    """([(upper bound, how many were at most that)], sum of all), as Prometheus counts them."""
    counted, rows = 0.0, []
    for bound in (*(f"{b:g}" for b in BUCKETS[name]), INFINITY):
        counted += amounts.get((name, bound), 0.0)
        rows.append((bound, counted))
    return rows, amounts.get((name, SUM), 0.0)


class Accumulator:
    """What one process has seen since it was last stored. Thread-safe; lost when the process is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts: defaultdict[Key, float] = defaultdict(float)

    def measured(self, measurement: Measurement) -> None:
        """Seconds of building, and of holding the device."""
        interval = measurement.interval
        held_s = max(0.0, interval[1] - interval[0]) if interval else 0.0
        with self._lock:
            if measurement.build_secs > 0.0:
                self._observe(BUILD, measurement.build_secs)
            if held_s > 0.0:
                self._observe(MEASURE, held_s)
                if measurement.identity is not None:
                    self._amounts[BUSY, measurement.identity.kind] += held_s

    def _observe(self, name: str, seconds: float) -> None:
        bound = next((f"{b:g}" for b in BUCKETS[name] if seconds <= b), INFINITY)
        self._amounts[name, bound] += 1
        self._amounts[name, SUM] += seconds

    @contextmanager
    def taken(self) -> Iterator[Mapping[Key, float]]:
        """What was seen, to be stored within; it is kept for the next time where that fails."""
        with self._lock:
            taken, self._amounts = self._amounts, defaultdict(float)
        try:
            yield taken
        except BaseException:
            with self._lock:
                for key, amount in taken.items():
                    self._amounts[key] += amount
            raise
