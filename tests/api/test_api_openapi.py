"""The OpenAPI document against the service itself: examples, request schemas, and generated requests."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from api_world import KEY, new_app
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_nouns import FakeClock

from api import examples, request_schemas, schemas
from db.store import SqlStore
from search_space.errors import InvalidField
from search_space.target import TargetQuery
from search_space.workload import parse_workload
from tuner.job import JobSpec

FEW = settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def resolved(name: str) -> dict[str, Any]:
    """A request schema that stands alone."""
    text = json.dumps({**request_schemas.REQUEST_SCHEMAS[name], "$defs": request_schemas.REQUEST_SCHEMAS})
    found: dict[str, Any] = json.loads(text.replace("#/components/schemas/", "#/$defs/"))
    return found


def accepts(parse: Callable[[object], object], body: object) -> bool:
    try:
        parse(body)
    except InvalidField:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "body", "parse"),
    [
        ("WorkloadRequest", examples.GEMM_REQUEST, parse_workload),
        ("WorkloadRequest", examples.ATTENTION_REQUEST, parse_workload),
        ("JobRequest", examples.JOB_REQUEST, JobSpec.from_json),
        ("JobRequest", examples.SINGLE_JOB_REQUEST, JobSpec.from_json),
        ("TargetRequest", "llvm", TargetQuery.from_json),
    ],
)
def test_request_examples_fit_schema_and_parser(name: str, body: object, parse: Callable[[object], object]) -> None:
    jsonschema.Draft202012Validator(resolved(name)).validate(body)
    assert accepts(parse, body)


def test_answer_examples_fit_their_models() -> None:
    for model in vars(schemas).values():
        extra = getattr(model, "model_config", {}).get("json_schema_extra") if isinstance(model, type) else None
        for example in (extra or {}).get("examples", ()):
            assert json.loads(model.model_validate(example).model_dump_json()).items() >= example.items()


MUTATIONS = st.sampled_from([None, True, -1, 0, 1.5, "x", "", [], {}, 2**63, "float17"])
NAMES = ["m", "n", "k", "dtype", "op", "batch", "trans_a", "epilogue", "groups", "scales", "surplus", "accumulate"]


@FEW
@given(name=st.sampled_from(NAMES), value=MUTATIONS)
def test_what_breaks_the_workloads_schema_is_refused_by_the_parser(name: str, value: object) -> None:
    body = {**examples.GEMM_REQUEST, name: value}
    if not jsonschema.Draft202012Validator(resolved("WorkloadRequest")).is_valid(body):
        assert not accepts(parse_workload, body), body


JOB_NAMES = [
    "name",
    "target",
    "tasks",
    "workload",
    "max_trials",
    "max_seconds",
    "preset",
    "seed",
    "priority",
    "surplus",
]


@FEW
@given(name=st.sampled_from(JOB_NAMES), value=MUTATIONS)
def test_what_breaks_the_jobs_schema_is_refused_by_the_parser(name: str, value: object) -> None:
    body = {**examples.JOB_REQUEST, name: value}
    if not jsonschema.Draft202012Validator(resolved("JobRequest")).is_valid(body):
        assert not accepts(JobSpec.from_json, body), body


KINDS = st.sampled_from(["auto", "cpu", "cuda", "llvm"])
WORDS = st.none() | st.text(min_size=1, max_size=200)
CORES = st.none() | st.integers(1, 2**63 - 1)
TARGET_FIELDS = {"kind": KINDS, "arch": WORDS, "mcpu": WORDS, "model": WORDS, "device": WORDS, "cores": CORES}
TARGETS = st.none() | KINDS | st.fixed_dictionaries({}, optional={**TARGET_FIELDS, "num-cores": CORES})


@FEW
@given(body=TARGETS)
def test_the_parser_takes_every_target_that_the_schema_describes(body: object) -> None:
    jsonschema.Draft202012Validator(resolved("TargetRequest")).validate(body)
    assert accepts(TargetQuery.from_json, body), body


def test_every_operation_tells_its_problems_with_an_example(steady: TestClient) -> None:
    document = steady.get("/openapi.json").json()
    assert "securitySchemes" not in document["components"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            problems = {s: r for s, r in operation["responses"].items() if s[0] in "45" and path.startswith("/v1/")}
            assert path[:3] != "/v1" or {"400", "401", "403", "422"} <= problems.keys(), (method, path)
            for status, response in problems.items():
                content = response["content"]["application/problem+json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert content["example"]["status"] == int(status)
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]
    assert body["content"]["application/json"]["examples"]["tasks"]["value"] == examples.JOB_REQUEST
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_reference_in_the_document_leads_somewhere(steady: TestClient) -> None:
    document = steady.get("/openapi.json").json()
    known = document["components"]["schemas"]

    def check(node: object) -> None:
        if isinstance(node, dict):
            target = node.get("$ref")
            assert target is None or target.removeprefix("#/components/schemas/") in known, target
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            check(child)

    check(document)


def test_the_key_is_in_the_document_when_one_is_needed(store: SqlStore, clock: FakeClock) -> None:
    client = TestClient(new_app(store, clock, keys=(KEY,)), base_url="http://localhost")
    document = client.get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    assert document["security"] == [{"key": []}]
