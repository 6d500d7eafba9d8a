"""The schema: migrations give what the models say, and a database that is not ours is refused, never changed."""

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from store_nouns import gemm, job_spec

import db.tables_served
from db import SchemaMismatch, StoreDamaged, StoreUnavailable, migrate, open_store
from db.__main__ import main
from db.engine import make_engine, parse_url
from db.schema import HEAD, config
from db.tables import Base


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request, tmp_path):
    return str(tmp_path / "new" / "store.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def described(url):
    """Columns, constraints and indexes (their conditions too) of every table, as the database tells them."""
    engine = make_engine(parse_url(url))
    with engine.connect() as connection:
        found = inspect(connection)
        tables = {}
        for name in sorted(set(found.get_table_names()) - {"alembic_version"}):
            columns = sorted(
                (c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in found.get_columns(name)
            )  # a migration adds at the end
            uniques = sorted(str(sorted(u["column_names"])) for u in found.get_unique_constraints(name))
            foreign = sorted(str((f["constrained_columns"], f["referred_table"])) for f in found.get_foreign_keys(name))
            tables[name] = (columns, found.get_pk_constraint(name)["constrained_columns"], uniques, foreign)
        where = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename != 'alembic_version'"
        if engine.dialect.name == "sqlite":
            where = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        indexes = sorted(connection.execute(text(where)).scalars())
    engine.dispose()
    return tables, indexes


def test_the_migrations_end_where_the_models_are(empty_url):
    migrate(empty_url)
    engine = make_engine(parse_url(empty_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    migrated = described(empty_url)
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    engine.dispose()
    assert described(empty_url) == migrated
    assert len(migrated[0]) == len(Base.metadata.tables) == 13
    assert db.tables_served.ScheduleRow.__tablename__ in migrated[0]


def test_there_is_one_head_and_it_is_the_one_expected():
    assert ScriptDirectory.from_config(config()).get_heads() == [HEAD]


def test_migrating_again_changes_nothing(empty_url):
    store = open_store(empty_url, migrate=True)
    job, _ = store.create_job(job_spec(), None, 1.0)
    migrate(empty_url)
    assert store.job(job.id) == job
    store.close()


def test_many_may_migrate_and_open_at_once(empty_url):
    barrier = threading.Barrier(6)

    def start(i: int) -> str:
        barrier.wait()
        store = open_store(empty_url, migrate=True)
        job, _ = store.create_job(job_spec(gemm(m=i + 1)), None, 1.0)
        store.close()
        return job.id

    with ThreadPoolExecutor(6) as pool:
        made = set(pool.map(start, range(6)))
    store = open_store(empty_url)
    assert {j.id for j in store.jobs(None, 10, None).items} == made
    store.close()


def test_a_database_without_a_schema_is_named_and_left_alone(empty_url, tmp_path):
    with pytest.raises(SchemaMismatch, match="python -m db migrate"):
        open_store(empty_url)
    assert not (tmp_path / "new").exists()


def test_a_newer_schema_is_refused(url):
    engine = make_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        for attempt in (lambda: open_store(url), lambda: open_store(url, migrate=True), lambda: migrate(url)):
            with pytest.raises(SchemaMismatch, match="newer version"):
                attempt()
    finally:
        with engine.begin() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
            connection.execute(text("UPDATE alembic_version SET version_num = :head"), {"head": HEAD})
        engine.dispose()


def test_a_database_of_something_else_is_refused(empty_url):
    engine = make_engine(parse_url(empty_url))
    Path(engine.url.database).parent.mkdir(exist_ok=True) if engine.dialect.name == "sqlite" else None
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    for attempt in (lambda: open_store(empty_url), lambda: migrate(empty_url)):
        with pytest.raises(SchemaMismatch, match="customers"):
            attempt()
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["customers"]
    engine.dispose()


def test_ping_notices_a_schema_that_went_away(empty_url):
    store = open_store(empty_url, migrate=True)
    store.ping()
    engine = make_engine(parse_url(empty_url))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(SchemaMismatch):
        store.ping()
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)
    engine.dispose()
    with pytest.raises(SchemaMismatch, match="migrate"):
        store.jobs(None, 5, None)
    store.close()


@pytest.mark.parametrize("damage", ["text", "truncated", "overwritten"])
def test_a_damaged_file_is_refused_and_not_overwritten(migrated_file, tmp_path, damage):
    path = tmp_path / "store.db"
    shutil.copy(migrated_file, path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "text": b"this is a letter, not a database\n" * 300,
            "truncated": whole[: len(whole) // 2],
            "overwritten": whole[:4096] + b"\xa5" * (len(whole) - 4096),
        }[damage]
    )
    before = path.read_bytes()
    for attempt in (lambda: open_store(str(path)), lambda: open_store(str(path), migrate=True)):
        with pytest.raises(StoreDamaged, match="restore it from a backup"):
            attempt()
    assert path.read_bytes() == before


def refused_unchanged(path: Path, content: bytes) -> bool:
    """Opening and migrating a file of `content` either works or is refused with what to do, the file as it was."""
    told: list[str] = []
    for migrate_first in (False, True):
        path.write_bytes(content)
        try:
            open_store(str(path), migrate=migrate_first).close()
        except (StoreDamaged, SchemaMismatch) as fault:
            told.append(str(fault))
    if told:
        assert path.read_bytes() == content
    assert all("backup" in message or "migrate" in message for message in told)
    return len(told) == 2


def test_a_file_cut_anywhere_is_refused_and_not_overwritten(migrated_file, tmp_path):
    whole = migrated_file.read_bytes()
    cuts = (1, 15, 16, 17, 99, 100, 511, 512, 4095, 4096, 4097, 8192, len(whole) - 4096, len(whole) - 1)
    for cut in cuts:
        assert refused_unchanged(tmp_path / f"cut-{cut}.db", whole[:cut]), cut


def test_random_bytes_are_refused_and_not_overwritten(migrated_file, tmp_path):
    rng = random.Random(3)
    header = migrated_file.read_bytes()[:100]
    for number, size in enumerate((1, 16, 100, 512, 4096, 40_960)):
        noise = rng.randbytes(size)
        assert refused_unchanged(tmp_path / f"noise-{number}.db", noise)
        assert refused_unchanged(tmp_path / f"header-{number}.db", header + noise)


def test_single_bytes_that_changed_are_refused_or_harmless(migrated_file, tmp_path):
    rng = random.Random(4)
    whole = migrated_file.read_bytes()
    for number, at in enumerate((18, 19, 47, 56, 59, 96)):  # versions, format and text encoding in the header
        bad = bytearray(whole)
        bad[at] ^= 0x80
        refused_unchanged(tmp_path / f"header-{number}.db", bytes(bad))
    refused = 0
    for number in range(11):  # the tenth breaks a name in the schema, so that it is no text
        bad = bytearray(whole)
        for _ in range(20):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        refused += refused_unchanged(tmp_path / f"flipped-{number}.db", bytes(bad))
    assert refused > 0


def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(StoreUnavailable):
        open_store("postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize("url", ["mysql://h/x", "sqlite://", "sqlite:///:memory:", "", "://"])
def test_what_is_not_a_database_url_is_refused(url):
    with pytest.raises(ValueError, match=r"database|SQLite"):
        open_store(url)


def test_the_command_migrates_and_checks(tmp_path, capsys):
    path = tmp_path / "new.db"
    assert main(["check", str(path)]) == 1
    assert "python -m db migrate" in capsys.readouterr().err
    secret = tmp_path / "url"
    secret.write_text(f"sqlite:///{path}\n")
    assert main(["migrate", "--url-file", str(secret)]) == 0
    assert main(["check", str(path)]) == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_importing_db_loads_no_heavy_room():
    heavy = "('tvm', 'ray', 'torch', 'fastapi', 'xgboost', 'uvicorn')"
    code = f"import db, sys; found = [m for m in {heavy} if m in sys.modules]; sys.exit(str(found) if found else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
