"""What the OpenAPI document says beyond what FastAPI derives: request bodies that the nouns parse themselves, the
problems each route can answer with, and the bearer key."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import examples, problems, schemas
from api.request_schemas import REQUEST_SCHEMAS
from api.workload_query import IDENTITY_FILTERS, fields_of
from search_space.workload import known_ops

_EXAMPLES: Mapping[int, tuple[str, str]] = {
    400: ("not-json", "Expecting value at line 1, column 1"),
    401: ("key-missing", "send Authorization: Bearer KEY"),
    403: ("cross-site", "the request comes from another site's page"),
    404: ("not-found", "no job job_1f0c2e"),
    409: ("conflict", "job job_1f0c2e is completed"),
    413: ("too-large", "the body may take 4194304 bytes"),
    415: ("not-json-type", "send Content-Type: application/json, not text/plain"),
    429: ("too-many-requests", "this key may send 600 requests a minute"),
    503: ("too-many-watchers", "1000 event streams are open; try again later or poll the job"),
}


Responses = dict[int | str, dict[str, Any]]


def problem_responses(*statuses: int, own: Mapping[int, dict[str, Any]] | None = None) -> Responses:
    """The `responses` of a route: its `own`, its problem statuses, and those that the door answers on any."""
    found: Responses = dict(own.items()) if own else {}
    found.update({status: _response(status) for status in sorted({400, 401, 403, 422, 429, *statuses})})
    return found


def _response(status: int) -> dict[str, Any]:
    row = next(row for row in problems.TABLE.values() if row.status == status)
    example = examples.PROBLEM
    if status in _EXAMPLES:
        code, detail = _EXAMPLES[status]
        example = problems.document(next(r for r in problems.TABLE.values() if r.code == code), detail)
    reference = {"$ref": "#/components/schemas/Problem"}
    return {"description": row.title, "content": {problems.MEDIA_TYPE: {"schema": reference, "example": example}}}


def json_body(schema: str, **named: object) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is parsed by a noun."""
    shown = {name: {"value": value} for name, value in named.items()}
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "examples": shown}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def lookup_parameters() -> dict[str, Any]:
    """The `openapi_extra` of the lookup: every field of every op, then the target, the filters and nearest."""
    types: dict[str, type] = {}
    for op in known_ops():
        types |= fields_of(op)
    parameters = [_parameter("op", {"type": "string", "enum": list(known_ops())}, "the operator", required=True)]
    kinds = {int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}, str: {"type": "string"}}
    for name, kind in types.items():
        ops = [op for op in known_ops() if name in fields_of(op)]
        parameters.append(_parameter(name, dict(kinds[kind]), f"a field of the workload ({', '.join(ops)})"))
    target = {"type": "string", "enum": ["auto", "cpu", "cuda", "llvm"], "default": "auto"}
    parameters += [
        _parameter("target", target, "kind of device"),
        _parameter("arch", {"type": "string"}, "LLVM processor name, or sm_90a and the like"),
        _parameter("device", {"type": "string"}, "the device's product name"),
        _parameter("cores", {"type": "integer", "minimum": 1}, "CPU cores, or streaming multiprocessors"),
    ]
    parameters += [_parameter(n, {"type": "string"}, "narrows the measurement's environment") for n in IDENTITY_FILTERS]
    nearest = {"type": "boolean", "default": False}
    parameters.append(_parameter("nearest", nearest, "answer with a labelled neighbour where there is no exact one"))
    return {"parameters": parameters}


def _parameter(name: str, schema: dict[str, Any], description: str, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": description}


@dataclasses.dataclass(frozen=True)
class DocumentBuilder:
    """Replaces `FastAPI.openapi`; the document is made once."""

    app: FastAPI
    with_key: bool

    def __call__(self) -> dict[str, Any]:
        if not self.app.openapi_schema:
            self.app.openapi_schema = self._build()
        return self.app.openapi_schema

    def _build(self) -> dict[str, Any]:
        app = self.app
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(REQUEST_SCHEMAS)
        problem = schemas.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        components.update(problem.pop("$defs", {}))
        components["Problem"] = problem
        # FastAPI's own shape of a 422 is never sent.
        components.pop("HTTPValidationError", None)
        components.pop("ValidationError", None)
        if self.with_key:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}]
        return document
