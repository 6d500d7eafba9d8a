"""A database of an older version, with data: backed up, restored and upgraded, it holds what it held."""

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, inspect, select
from store_nouns import ARTIFACT, best_config, candidate, claimed, gemm, job_spec, measured

from db import migrate, open_store
from db.engine import make_engine, parse_url
from db.schema import HEAD, config
from db.tables import Base
from tuner.job import JobState, StopReason
from tuner.views import Keep

OLDER = [s.revision for s in ScriptDirectory.from_config(config()).walk_revisions() if s.revision != HEAD]


def fill(store):
    """One job completed with its winner, one under way; their ids."""
    done = claimed(store, job_spec(gemm(4), max_trials=4))
    task = done.tasks[0].task_id
    for trial in store.reserve(done, task, [(candidate(i), None) for i in range(4)]):
        store.commit(done, task, measured(trial, 0.001 * (trial.ordinal + 1)))
    store.promote(done, task, best_config(chosen=candidate(0)), ARTIFACT)
    store.finish_task(done, task, StopReason.TRIALS)
    store.finish_job(done, JobState.COMPLETED, StopReason.TRIALS, None)
    under_way = claimed(store, job_spec(gemm(5), max_trials=4))
    for trial in store.reserve(under_way, under_way.tasks[0].task_id, [(candidate(9), None)]):
        store.commit(under_way, under_way.tasks[0].task_id, measured(trial))
    store.count_lookup(gemm(4), job_spec().target, "exact", 5.0, 3)
    return done.job_id, under_way.job_id


def make_old(url, revision, source):
    """A database at `revision` that holds the rows of `source`, without what that version had no place for."""
    engine, filled = make_engine(parse_url(url)), make_engine(parse_url(source))
    with engine.begin() as connection:
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, revision)
    old = MetaData()
    old.reflect(engine)
    with engine.begin() as connection, filled.connect() as reading:
        for table in Base.metadata.sorted_tables:
            if table.name not in old.tables:
                continue
            into = old.tables[table.name]
            names = [c.name for c in into.columns]
            rows = [dict(r) for r in reading.execute(select(*(table.c[n] for n in names))).mappings()]
            if rows:
                connection.execute(into.insert(), rows)
        assert "virtual_s" not in {c["name"] for c in inspect(connection).get_columns("jobs")}
    engine.dispose()
    filled.dispose()


def backed_up(url, tmp_path, request):
    """A new database that holds a backup of the one at `url`, by the very commands that docs/storage.md gives."""
    if parse_url(url).get_backend_name() == "sqlite":
        copy = tmp_path / "restored.db"
        with sqlite3.connect(parse_url(url).database) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()
        return f"sqlite:///{copy}"
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
    dump = shutil.which("pg_dump") or (str(programs / "pg_dump") if programs else None)
    restore = shutil.which("pg_restore") or (str(programs / "pg_restore") if programs else None)
    if not dump or not Path(dump).exists() or not restore or not Path(restore).exists():
        pytest.skip("pg_dump is missing: apt-get install -y postgresql-client")
    server = request.getfixturevalue("postgres_server")
    goal = server.create_database(f"restored_{tmp_path.name[-12:]}".replace("-", "_"))
    subprocess.run([dump, "--format=custom", f"--file={tmp_path / 'a.dump'}", url], check=True, timeout=60)
    subprocess.run([restore, "--no-owner", f"--dbname={goal}", str(tmp_path / "a.dump")], check=True, timeout=60)
    return goal


@pytest.mark.parametrize("revision", OLDER)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_an_older_database_is_restored_and_upgraded(kind, revision, tmp_path, request):
    source = f"sqlite:///{tmp_path / 'source.db'}"
    first = open_store(source, migrate=True)
    done, under_way = fill(first)
    expected = [first.job(done), first.trials(done, None, None, 10, None), first.events(done, 0, 100)]
    old = f"sqlite:///{tmp_path / 'old.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    make_old(old, revision, source)
    url = backed_up(old, tmp_path, request)
    migrate(url)
    store = open_store(url)
    try:
        assert [store.job(done), store.trials(done, None, None, 10, None), store.events(done, 0, 100)] == expected
        found = store.best(gemm(4), job_spec().target, {})
        assert store.artifact(found.schedule.best.artifact) == ARTIFACT
        assert store.counts() == first.counts()
        _goes_on(store, done, under_way)
    finally:
        store.close()
        first.close()


def _goes_on(store, done, under_way):
    """What is new works on what is old."""
    assert store.interrupt_expired() in (0, 1)
    store.pause(under_way, 1.0)
    store.resume(under_way, 2.0)
    lease = store.claim("after", ["cpu"], 30.0)
    assert lease.job_id == under_way
    assert not store.yield_job(lease, ["cpu"], 0.0)
    (trial,) = store.reserve(lease, lease.tasks[0].task_id, [(candidate(11), None)])
    store.commit(lease, lease.tasks[0].task_id, measured(trial))
    assert store.remove_job(done, Keep(winners=False), 3.0).deleted
