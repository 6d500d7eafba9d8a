"""Fixtures that several rooms' tests share."""

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
