"""RFC 9457 problem documents: one table from error to status, one function that renders."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api import errors
from db.errors import SchemaMismatch, StoreDamaged, StoreError
from search_space.errors import InvalidField
from tuner.access import LimitReached
from tuner.ports import StoreUnavailable
from tuner.views import BadCursor, Conflict, NotFound

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# A detail may quote the request: a megabyte of it helps nobody.
MAX_DETAIL = 1000
LIMIT_RETRY_S = 30  # open jobs end in minutes: earlier than this there is little hope


@dataclass(frozen=True)
class Row:
    status: int
    code: str
    title: str


TABLE: Mapping[type[Exception], Row] = {
    InvalidField: Row(422, "invalid-field", "A field cannot be right"),
    RequestValidationError: Row(422, "invalid-field", "A field cannot be right"),
    NotFound: Row(404, "not-found", "No such thing"),
    Conflict: Row(409, "conflict", "The request contradicts the present state"),
    BadCursor: Row(400, "bad-cursor", "The cursor was not handed out by this service"),
    errors.BodyNotJson: Row(400, "not-json", "The body is not a JSON document"),
    errors.BodyTooDeep: Row(400, "too-deep", "The body is nested too deeply"),
    errors.BodyTooLarge: Row(413, "too-large", "The body is too large"),
    errors.UnsupportedMediaType: Row(415, "not-json-type", "The body must be application/json"),
    errors.KeyMissing: Row(401, "key-missing", "A bearer key is needed"),
    errors.KeyRefused: Row(401, "key-refused", "The bearer key is not accepted"),
    errors.ScopeRefused: Row(403, "scope-refused", "The key may not do this"),
    errors.TooManyRequests: Row(429, "too-many-requests", "The key asks too often"),
    LimitReached: Row(429, "limit-reached", "The key has as much open as it may"),
    errors.CrossSite: Row(403, "cross-site", "Requests from other sites change nothing here"),
    errors.HostRefused: Row(403, "host-refused", "The service does not answer to this host name"),
    errors.Untuned: Row(404, "untuned", "No schedule of this workload for this target"),
    errors.Stale: Row(404, "stale", "The schedule known was made under other conditions"),
    StoreUnavailable: Row(503, "store-unavailable", "The database cannot be used now"),
    SchemaMismatch: Row(503, "schema-mismatch", "The database has another schema than this program"),
    StoreDamaged: Row(500, "store-damaged", "Stored data is not what was written"),
    StoreError: Row(500, "store-unusable", "The database cannot be used as it is"),
    errors.TooManyWatchers: Row(503, "too-many-watchers", "No event stream is free"),
}
INTERNAL = Row(500, "internal", "The service failed")


def row_of(error: Exception) -> Row:
    """The row of the error's nearest class in TABLE; INTERNAL for an error that has none."""
    for cls in type(error).__mro__:
        if cls in TABLE:
            return TABLE[cls]
    return INTERNAL


def document(row: Row, detail: str, extra: Mapping[str, object] | None = None) -> dict[str, object]:
    body: dict[str, object] = {
        "type": f"urn:tilewright:problem:{row.code}",
        "title": row.title,
        "status": row.status,
        "detail": detail if len(detail) <= MAX_DETAIL else detail[:MAX_DETAIL] + "...",
        "code": row.code,
    }
    return body | dict(extra or {})


def render(row: Row, detail: str, extra: Mapping[str, object] | None = None) -> JSONResponse:
    headers = {401: {"WWW-Authenticate": 'Bearer realm="tilewright"'}, 503: {"Retry-After": "2"}}.get(row.status, {})
    if row.status == 429:
        headers = {"Retry-After": str((extra or {}).get("retry_after_s", LIMIT_RETRY_S))}
    return JSONResponse(document(row, detail, extra), row.status, headers, MEDIA_TYPE)


def describe(error: Exception) -> tuple[str, dict[str, object]]:
    """(detail, further members) of a known error; wrong fields are listed under `errors`."""
    if isinstance(error, InvalidField):
        return str(error).removeprefix(": "), _fields([_entry(error.field, error.message, error.allowed)])
    if isinstance(error, RequestValidationError):
        entries = [_entry(_dotted(fault["loc"]), str(fault["msg"])) for fault in error.errors()]
        return "; ".join(f"{e['field']}: {e['message']}" for e in entries), _fields(entries)
    if isinstance(error, errors.ApiError):
        return error.detail, dict(error.extra)
    return (str(error.args[0]) if error.args else type(error).__name__), {}


def problem_of(error: Exception) -> dict[str, object]:
    """The problem document of an error, for answers that hold several (a batch)."""
    detail, extra = describe(error)
    return document(row_of(error), detail, extra)


def _entry(field: str, message: str, allowed: Sequence[str] = ()) -> dict[str, object]:
    return {"field": field[:MAX_DETAIL], "message": message[:MAX_DETAIL], "allowed": list(allowed)}


def _fields(entries: list[dict[str, object]]) -> dict[str, object]:
    return {"field": entries[0]["field"], "errors": entries}


def _dotted(loc: Sequence[object]) -> str:
    """FastAPI's location without its first part (query, path, header): the parameter's own name."""
    return ".".join(str(part) for part in (loc[1:] if len(loc) > 1 else loc))


def set_error_page(app: FastAPI, page: Callable[[Row, str, bool], Response]) -> None:
    """What a browser is shown in place of a problem document, outside the API's own paths."""
    app.state.error_page = page


def _answer(request: Request, row: Row, detail: str, extra: Mapping[str, object] | None = None) -> Response:
    page = getattr(request.app.state, "error_page", None)
    wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")
    if page is not None and wants_page and request.method == "GET":
        shown: Response = page(row, detail, request.app.state.service.settings.is_keyed)
        return shown
    return render(row, detail, extra)


async def _known(request: Request, error: Exception) -> Response:
    detail, extra = describe(error)
    return _answer(request, row_of(error), detail, extra)


async def _http(request: Request, error: Exception) -> Response:
    """Faults of routing: 404 for an unknown path, 405 with Allow."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    row = Row(error.status_code, phrase.lower().replace(" ", "-"), phrase)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"no resource at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.method} is not allowed here"
    response = _answer(request, row, detail)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = ", ".join(_allowed(request))
    return response


def _allowed(request: Request) -> list[str]:
    """The methods that some route takes on this path (the router itself names those of the first route alone)."""
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    routes = request.app.routes
    return [m for m, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes)]


def internal(request: Request, error: Exception) -> Response:
    """The cause goes to the log, never to the caller: it may hold paths, queries or keys."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(request, INTERNAL, "the request could not be answered; the service's log says why")


def install(app: FastAPI) -> None:
    for cls in TABLE:
        app.add_exception_handler(cls, _known)
    app.add_exception_handler(HTTPException, _http)
