"""Every test that asks for `store` runs on SQLite and on a real PostgreSQL: one contract, two databases."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from store_nouns import FakeClock

from db import SqlStore, migrate, open_store
from db.tables import Base

TABLES = ", ".join(table.name for table in Base.metadata.sorted_tables)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "migrated.db"
    migrate(str(path))
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server) -> str:
    url = postgres_server.create_database("contract")
    migrate(url)
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a migrated, empty database of the test's own."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        return f"sqlite:///{path}"
    found = request.getfixturevalue("migrated_postgres")
    with psycopg.connect(found) as connection:  # much quicker than a database for each test
        connection.execute(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE")
    return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_one(url: str, clock: FakeClock) -> Iterator[Callable[..., SqlStore]]:
    """Opens further stores on the test's database, each closed at the end."""
    opened: list[SqlStore] = []

    def open_it(**more: object) -> SqlStore:
        opened.append(open_store(url, **{"clock": clock, **more}))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_one: Callable[..., SqlStore]) -> SqlStore:
    return open_one()
