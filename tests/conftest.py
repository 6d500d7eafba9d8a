"""Fixtures that several rooms' tests share."""

import uuid
from collections.abc import Iterator

import pytest
from postgres_server import PostgresMissing, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run's own; skips, with the line that installs it, where it is missing."""
    try:
        server = PostgresServer()
    except PostgresMissing as fault:
        pytest.skip(str(fault))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database (no schema); dropped after the test, whoever is still connected."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
