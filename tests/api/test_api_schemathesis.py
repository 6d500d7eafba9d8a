"""Requests generated from the OpenAPI document, right and wrong ones, against the service over a store with content."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from api_world import claimed_job, finish, new_app, new_store
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode
from store_nouns import FakeClock, device

from api.app import create_app

load_all_checks()
# Left out: positive_data_acceptance, because rules between fields (heads_q a multiple of heads_kv) are beyond a JSON
# Schema; the others concern keys and links that this document does not declare.
APPLIED = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
        "allow_header_conformance",
    ]
)
FEW = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


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
    app = new_app(store, clock, allowed_hosts=("testserver",))
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
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
    operation = document[path][method.upper()]
    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.path_parameters or operation.body):
        return  # nothing of such a request could be wrong

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        # A wrong workload in a batch is refused in its own place, so that it does not spoil the others: 200.
        tolerant = path.endswith(":batch")
        excluded = CHECKS.get_by_names(["negative_data_rejection"]) if tolerant else []
        case.call_and_validate(checks=APPLIED, excluded_checks=excluded)

    check()
