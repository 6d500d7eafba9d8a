"""Faults of the database become errors that say what to do; what a client did is stored whole or not at all."""

import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from store_nouns import ARTIFACT, best_config, candidates, claimed, gemm, job_spec, measured

from db import SchemaMismatch, StoreDamaged, StoreUnavailable, engine, open_store
from db.tables import JobRow


@pytest.fixture
def sqlite_path(migrated_file, tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(migrated_file.read_bytes())
    return path


def test_a_lock_that_is_never_released_is_unavailable(sqlite_path, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    store = open_store(str(sqlite_path))
    other = sqlite3.connect(sqlite_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.create_job(job_spec(), None, 1.0)
    assert store.jobs(None, 5, None).items == [], "readers are not blocked by a writer"
    other.execute("ROLLBACK")
    other.close()
    store.create_job(job_spec(), None, 1.0)
    assert len(store.jobs(None, 5, None).items) == 1
    store.close()


def test_a_full_disk_is_unavailable_and_leaves_no_half_of_a_promotion(sqlite_path):
    store = open_store(str(sqlite_path))
    lease = claimed(store, job_spec())
    before = store.job(lease.job_id)

    def limit(connection, _record):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")

    store._tx.engine.dispose()
    event.listen(store._tx.engine, "connect", limit)
    big = ARTIFACT * 20_000
    with pytest.raises(StoreUnavailable, match="full"):
        store.promote(lease, lease.tasks[0].task_id, best_config(artifact=big), big)
    assert store.job(lease.job_id) == before
    assert store.schedules_of_job(lease.job_id) == []
    event.remove(store._tx.engine, "connect", limit)
    store._tx.engine.dispose()
    store.promote(lease, lease.tasks[0].task_id, best_config(artifact=big), big)
    assert store.artifact(best_config(artifact=big).artifact) == big
    store.close()


def test_a_file_that_is_damaged_while_it_is_used_is_named(sqlite_path):
    store = open_store(str(sqlite_path))
    for i in range(30):
        store.create_job(job_spec(gemm(m=i + 1)), None, float(i))
    store._tx.engine.dispose()
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole = sqlite_path.read_bytes()
    sqlite_path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(StoreDamaged, match="backup"):
        store.jobs(None, 50, None)
    store.close()


@pytest.mark.postgres
def test_a_server_that_restarts_is_unavailable_and_then_there_again(postgres_url):
    store = open_store(postgres_url, migrate=True)
    job, _ = store.create_job(job_spec(), None, 1.0)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()")
    assert store.job(job.id) == job, "a connection that was cut is replaced before it is used"

    def cut_then_read(session):
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StoreUnavailable):
        store._tx.write(cut_then_read)
    store.close()


@pytest.mark.postgres
def test_transactions_that_deadlock_are_run_again(postgres_url):
    store = open_store(postgres_url, migrate=True)
    ids = [store.create_job(job_spec(gemm(m=i + 1)), None, 1.0)[0].id for i in range(2)]
    both = threading.Barrier(2)
    runs = []

    def run(order):
        def work(session):
            runs.append(order)
            waits = runs.count(order) == 1
            session.get(JobRow, ids[order[0]], with_for_update=True)
            if waits:
                both.wait(20)  # each holds one row now and wants the other's
            session.get(JobRow, ids[order[1]], with_for_update=True)

        store._tx.write(work)

    threads = [threading.Thread(target=run, args=(order,)) for order in ((0, 1), (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(runs) == 3, "one of the two was the victim and ran again"
    store.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_WRITE, StoreUnavailable),
        (sqlite3.SQLITE_CANTOPEN, StoreUnavailable),
        (sqlite3.SQLITE_READONLY, StoreUnavailable),
        (sqlite3.SQLITE_CORRUPT, StoreDamaged),
        (sqlite3.SQLITE_NOTADB, StoreDamaged),
    ],
)
def test_each_fault_of_sqlite_has_its_error(code, expected):
    fault = sqlite3.OperationalError("it went wrong")
    fault.sqlite_errorcode = code
    assert type(engine.translated(OperationalError("SELECT", {}, fault))) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("08006", StoreUnavailable),
        ("53100", StoreUnavailable),
        ("57P01", StoreUnavailable),
        ("55P03", StoreUnavailable),
        ("XX001", StoreDamaged),
        ("42P01", SchemaMismatch),
        ("22012", DBAPIError),
    ],
)
def test_each_fault_of_postgresql_has_its_error(state, expected):
    kind = type("Fault", (psycopg.Error,), {"sqlstate": state})
    assert isinstance(engine.translated(DBAPIError("SELECT", {}, kind("it went wrong"))), expected)


def test_a_session_gives_its_connection_back(open_one):
    store = open_one()
    lease = claimed(store, job_spec(max_trials=3))
    for trial in store.reserve(lease, lease.tasks[0].task_id, candidates(3)):
        store.commit(lease, lease.tasks[0].task_id, measured(trial))
    assert store._tx.engine.pool.checkedout() == 0
