"""The store with millions of records: `python -m benchmarks.storage [--records N] [--db URL]`.

Fills a database with finished jobs by bulk inserts, then times the queries that users and runners wait for, each in
this process, and says how large the database is. Times are this machine's.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sqlalchemy import func, select, text

from api.wiring import build_store
from benchmarks.result_file import ResultFile, cpu_environment
from benchmarks.service_records import TRIALS_PER_TASK, fill
from db import SqlStore
from db.tables import MeasurementRow, TrialRow
from search_space.target import Target, TargetQuery
from search_space.workload import parse_workload
from tuner.job import JobSpec, TaskSpec
from tuner.outcome import Outcome
from tuner.task import Task
from workers.host import host_target

PROTOCOL = (
    "A database filled with finished jobs of 8 tasks and 512 measurements, each job one transaction with the rows that "
    "a runner leaves; then each query is repeated over jobs, tasks and workloads drawn at random, after a few that are "
    "not timed. Milliseconds from before the store's method is called to after it returned, in one process."
)
# What each is allowed at the 99th percentile, in milliseconds, whatever the number of records.
BOUNDS_MS = {
    "best": 20.0,
    "job": 100.0,
    "jobs_page": 200.0,
    "trials_page": 100.0,
    "trials_last_page": 100.0,
    "failures_page": 100.0,
    "progress": 200.0,
    "events_page": 100.0,
    "claim_and_release": 100.0,
}


def timed(count: int, call: Callable[[], object]) -> dict[str, float]:
    seconds = []
    for _ in range(5):
        call()
    for _ in range(count):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    at = np.percentile(np.asarray(seconds) * 1e3, (50, 99))
    return {"p50_ms": float(at[0]), "p99_ms": float(at[1]), "max_ms": max(seconds) * 1e3, "calls": count}


def queries(
    store: SqlStore, target: Target, shapes: Sequence[dict[str, object]], jobs: Sequence[str]
) -> dict[str, Callable[[], object]]:
    rng = random.Random(1)
    query = TargetQuery(target.kind)
    task = Task(parse_workload(shapes[0]), target)

    def a_job() -> str:
        return rng.choice(jobs)

    def last_page() -> object:
        return store.trials(a_job(), None, None, 50, None, newest_first=True)

    def claim() -> None:
        lease = store.claim("benchmark", [target.kind], 60.0)
        assert lease is not None
        store.release(lease)

    return {
        "best": lambda: store.best(parse_workload(rng.choice(shapes)), query, {}),
        "job": lambda: store.job(a_job()),
        "jobs_page": lambda: store.jobs(None, 50, None),
        "trials_page": lambda: store.trials(a_job(), rng.randrange(8), None, 50, None),
        "trials_last_page": last_page,
        "failures_page": lambda: store.trials(a_job(), None, Outcome.BUILD_ERROR, 50, None),
        "progress": lambda: store.progress(a_job(), rng.randrange(8), 500),
        "events_page": lambda: store.events(a_job(), 100, 100),
        "related_records_4000": lambda: store.related_records(task, 4000),
        "claim_and_release": claim,
        "counts_for_metrics": store.counts,
    }


def size_bytes(store: SqlStore) -> int:
    engine = store._tx.engine
    if engine.dialect.name == "sqlite":
        path = str(engine.url.database)
        return sum(os.path.getsize(p) for p in (path, f"{path}-wal") if os.path.exists(p))
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def settle(store: SqlStore) -> None:
    """Statistics for the planner, as a database that has run for a while has them."""
    with store._tx.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")


def rows(store: SqlStore) -> dict[str, int]:
    with store._tx.engine.connect() as connection:
        tables = (TrialRow, MeasurementRow)
        return {t.__tablename__: connection.execute(select(func.count()).select_from(t)).scalar_one() for t in tables}


def measure(database: str, records: int, calls: int) -> dict[str, object]:
    target = host_target()
    store = build_store(database, migrate=True)
    begin = time.perf_counter()
    shapes = fill(store, target, records)
    filled_s = time.perf_counter() - begin
    jobs = [j.id for j in store.jobs(None, 1000, None).items]
    with_a_job_to_claim(store)
    settle(store)
    timings = {name: timed(calls, call) for name, call in queries(store, target, shapes, jobs).items()}
    out = {"database": store._tx.engine.dialect.name, "rows": rows(store), "bytes": size_bytes(store)}
    store.close()
    per_record = int(str(out["bytes"])) / max(1, len(shapes) * TRIALS_PER_TASK)
    return {**out, "bytes_per_record": per_record, "fill_s": filled_s, "queries": timings}


def with_a_job_to_claim(store: SqlStore) -> None:
    workload = parse_workload({"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "float32"})
    store.create_job(JobSpec((TaskSpec(workload),)), None, time.time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--calls", type=int, default=300, help="of each query")
    parser.add_argument("--db", help="database URL; an empty one (default: a temporary SQLite file)")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    target = host_target()
    result = ResultFile("storage", PROTOCOL, cpu_environment(target.model, target.arch, target.cores))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.db or f"sqlite:///{Path(folder) / 'bench.db'}", options.records, options.calls)
    timings = found["queries"]
    assert isinstance(timings, dict)
    result.tables = {"records": options.records, **found}
    result.summary = {f"{n}_p99_under_{b:g}_ms": timings[n]["p99_ms"] < b for n, b in BOUNDS_MS.items()}
    print(result.write(options.out), result.tables, result.summary)


if __name__ == "__main__":
    main()
