"""The queries that a service runs all the time are answered by an index, on both databases."""

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from store_nouns import gemm

from db.leases import claim_query, expired_query
from db.lookup import BEST
from db.records import related_query
from db.retention import ended_query
from db.tables import EventRow, MeasurementRow
from db.trial_views import page_query
from tuner.outcome import Outcome

QUERIES = {
    "best": (lambda: BEST.params(workload_key=gemm().key), "uq_schedules_current"),
    "claim": (lambda: claim_query(["cpu"]), "ix_jobs_claim"),
    "expired": (lambda: expired_query(1.0), "ix_jobs_state_newest"),
    "trials": (lambda: page_query("job_a", None, None, 50, 50), "uq_trials_job_id_ordinal"),
    "trials backwards": (lambda: page_query("job_a", None, None, None, 50, True), "uq_trials_job_id_ordinal"),
    "trials of a task": (lambda: page_query("job_a", 5, None, 50, 50), "ix_trials_task"),
    "failures": (lambda: page_query("job_a", None, Outcome.RUN_ERROR, 50, 50), "ix_trials_outcome"),
    "old jobs": (lambda: ended_query(5.0, 10), "ix_jobs_ended"),
    "related": (lambda: related_query("gemm", "cpu", 100), "ix_measurements_related"),
    "events": (
        lambda: (
            select(EventRow)
            .where(EventRow.job_id == "job_a", EventRow.sequence > 9)
            .order_by(EventRow.sequence)
            .limit(100)
        ),
        "pk_events",
    ),
    "curve": (
        lambda: select(MeasurementRow.id).where(MeasurementRow.task_id == 5, MeasurementRow.level >= 3),
        "ix_measurements_curve",
    ),
}


def plan_of(store, query) -> str:
    """The database's plan for the query. On empty tables PostgreSQL would read them whole; what matters is that the
    index can serve."""

    def plan(session: Session) -> str:
        dialect = session.get_bind().dialect
        sql = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        if dialect.name == "sqlite":
            return "\n".join(row[3] for row in session.execute(text(f"EXPLAIN QUERY PLAN {sql}")))
        session.execute(text("SET LOCAL enable_seqscan = off"))
        session.execute(text("SET LOCAL enable_bitmapscan = off"))
        return "\n".join(row[0] for row in session.execute(text(f"EXPLAIN {sql}")))

    return store._tx.read(plan)


@pytest.mark.parametrize("name", QUERIES)
def test_a_frequent_query_uses_its_index(store, name):
    query, index = QUERIES[name][0](), QUERIES[name][1]
    found = plan_of(store, query)
    if "sqlite" in store._tx.engine.dialect.name and index in ("pk_events", "uq_trials_job_id_ordinal"):
        index = f"sqlite_autoindex_{index.split('_')[1]}"  # SQLite names the index of a constraint itself
    assert index in found, found
    assert "TEMP B-TREE" not in found or name == "best", f"rows are sorted instead of read in order:\n{found}"
