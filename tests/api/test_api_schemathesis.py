"""Requests generated from the OpenAPI document, right and wrong ones, against the service over a store with content."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from api_world import KEY, claimed_job, finish, new_app, new_store
from generated_requests import Tally, check_operation
from schemathesis.generation import GenerationMode
from store_nouns import FakeClock, device

from api.app import create_app

FEW = 6  # `python -m benchmarks.fuzz` sends twenty thousand


class Unused:
    """The document is made without a store."""


@pytest.fixture(scope="session")
def document(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[schemathesis.BaseSchema]:
    """The service with one completed job. No job of it runs: a stream of events of one would not end."""
    file = tmp_path_factory.mktemp("generated") / "tilewright.sqlite"
    shutil.copy(migrated, file)
    clock = FakeClock()
    store = new_store(file, clock)
    store.heartbeat_devices("runner-1", [device()], 60.0)
    finish(store, claimed_job(store, [0.003, None, 0.002]))
    app = new_app(store, clock, allowed_hosts=("testserver",), keys=(KEY,))
    yield schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Authorization": f"Bearer {KEY}"})
    store.close()


OPERATIONS = [
    (path, method)
    for path, operations in create_app(Unused()).openapi()["paths"].items()  # type: ignore[arg-type]
    for method in operations
]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_generated_requests_get_the_answers_that_the_document_promises(
    document: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    check_operation(document, path, method, mode, FEW, Tally(), {"Authorization": f"Bearer {KEY}"})
