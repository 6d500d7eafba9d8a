"""A store with one CPU device reported, and a client of the service over it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_world import SKETCHES, new_client, new_store
from fastapi.testclient import TestClient
from store_nouns import FakeClock, device

from db import schema
from db.store import SqlStore
from search_space import registry


@pytest.fixture(autouse=True)
def _one_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "all_sketches", lambda: SKETCHES)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with its schema, copied for each test: migrating takes longer than most tests."""
    file = tmp_path_factory.mktemp("api") / "empty.sqlite"
    schema.migrate(str(file))
    return file


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bare_store(tmp_path: Path, migrated: Path, clock: FakeClock) -> Iterator[SqlStore]:
    """No device was ever reported to it."""
    file = tmp_path / "tilewright.sqlite"
    shutil.copy(migrated, file)
    opened = new_store(file, clock)
    yield opened
    opened.close()


@pytest.fixture
def store(bare_store: SqlStore) -> SqlStore:
    bare_store.heartbeat_devices("runner-1", [device()], 60.0)
    return bare_store


@pytest.fixture
def client(store: SqlStore, clock: FakeClock) -> Iterator[TestClient]:
    with new_client(store, clock) as opened:
        yield opened


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[TestClient]:
    """One client for all the tests that change nothing: building an application takes longer than they do."""
    file = tmp_path_factory.mktemp("steady") / "tilewright.sqlite"
    shutil.copy(migrated, file)
    clock = FakeClock()
    opened = new_store(file, clock)
    opened.heartbeat_devices("runner-1", [device()], 60.0)
    with new_client(opened, clock) as shared:
        yield shared
    opened.close()
