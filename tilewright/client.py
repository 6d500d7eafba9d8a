"""HTTP client of the tilewright API, for scripts and for the command line."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx

JsonObject = dict[str, Any]


class ApiError(RuntimeError):
    """The server refused or failed: `status`, and the problem document (RFC 9457) it answered with."""

    def __init__(self, status: int, problem: JsonObject) -> None:
        self.status = status
        self.problem = problem
        detail = problem.get("detail") or problem.get("title") or f"HTTP {status}"
        super().__init__(str(detail))

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))


class Unreachable(RuntimeError):
    """No server answered at the address; nothing was sent, or nothing came back."""


@dataclass(frozen=True)
class ServerEvent:
    """One event of a job's stream: `sequence` counts from 1 without gaps."""

    sequence: int
    kind: str
    data: JsonObject


class Client:
    """Talks to one service. Not thread-safe. Raises ApiError and Unreachable; ValueError for what is no address.

    `transport` lets the same client speak to an application in this process (the local database).
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8400",
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self.streams = transport is None  # an application in this process answers whole bodies only
        try:
            self._http = httpx.Client(base_url=url, headers=headers, transport=transport, timeout=timeout_s)
        except httpx.InvalidURL as fault:
            raise ValueError(f"not a URL: {url!r} ({fault})") from None
        if self._http.base_url.scheme not in ("http", "https") or not self._http.base_url.host:
            raise ValueError(f"not the address of a service: {url!r} (as in http://127.0.0.1:8400)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(self, body: Mapping[str, object], idempotency_key: str | None = None) -> JsonObject:
        """POST /v1/jobs. A number that JSON cannot hold is refused here, as the service would."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        _check_finite("", body)
        return self._json(self._send("POST", "/v1/jobs", json=dict(body), headers=headers))

    def job(self, job_id: str) -> JsonObject:
        return self.get(f"/v1/jobs/{_segment('job', job_id)}")

    def schedule(self, schedule_id: str) -> JsonObject:
        return self.get(f"/v1/schedules/{_segment('schedule', schedule_id)}")

    def act(self, job_id: str, action: str) -> JsonObject:
        """`action`: cancel, pause or resume."""
        return self._json(self._send("POST", f"/v1/jobs/{_segment('job', job_id)}/{action}"))

    def remove_job(self, job_id: str, winners: str = "keep", records: str = "remove") -> JsonObject:
        """DELETE /v1/jobs/{id}: what of an ended job is kept or removed; ApiError 409 for one that has not ended."""
        return self._json(self._send("DELETE", f"/v1/jobs/{job_id}", params={"winners": winners, "records": records}))

    def best(self, workload: Mapping[str, object], **params: object) -> JsonObject:
        """GET /v1/schedules/best; ApiError with code "untuned" (404) where there is none."""
        return self.get("/v1/schedules/best", {**_query(workload), **_query(params)})

    def artifact(self, schedule_id: str) -> bytes:
        return self._send("GET", f"/v1/schedules/{_segment('schedule', schedule_id)}/artifact").content

    def pages(self, path: str, params: Mapping[str, object] | None = None) -> Iterator[JsonObject]:
        """Every item of a cursor-paged listing."""
        query = _query(params or {})
        while True:
            page = self.get(path, query)
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return
            query["cursor"] = cursor

    def get(self, path: str, params: Mapping[str, str] | None = None) -> JsonObject:
        return self._json(self._send("GET", path, params=dict(params or {})))

    def events(self, job_id: str, after: int = 0) -> Iterator[ServerEvent]:
        """The job's event stream from `after` on; ends when the job has ended. One connection: see `watch`."""
        headers = {"Last-Event-ID": str(after)} if after else {}
        path = f"/v1/jobs/{_segment('job', job_id)}/events"
        try:
            with self._http.stream("GET", path, headers=headers, timeout=httpx.Timeout(30.0, read=90.0)) as response:
                if response.status_code >= 400:
                    response.read()
                    raise _error(response)
                yield from _server_events(response.iter_lines())
        except httpx.TransportError as fault:
            raise Unreachable(f"the stream from {self.url} broke: {fault}") from fault

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.TransportError as fault:
            raise Unreachable(f"no answer from {self.url}: {fault or type(fault).__name__}") from fault
        if response.status_code >= 400:
            raise _error(response)
        return response

    @staticmethod
    def _json(response: httpx.Response) -> JsonObject:
        try:
            data: JsonObject = response.json()
        except ValueError:
            raise Unreachable(f"{response.url} answered something other than JSON: no tilewright there") from None
        return data


def _segment(name: str, value: str) -> str:
    """An id as one part of a path: what is typed by hand may hold slashes, dots or nothing at all."""
    if not value.strip(". "):
        raise ApiError(404, {"detail": f"no {name} {value!r}", "code": "not-found"})
    return quote(value, safe="")


def _check_finite(name: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ApiError(422, {"detail": f"{name}: must be a finite number, got {value}", "field": name})
    items: Iterator[tuple[object, object]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list | tuple):
        items = iter(enumerate(value))
    for key, item in items:
        _check_finite(f"{name}.{key}" if name else str(key), item)


def _query(params: Mapping[str, object]) -> dict[str, str]:
    """Query parameters as the API spells them: booleans true/false, nothing for None."""
    out = {}
    for name, value in params.items():
        if value is None:
            continue
        out[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return out


def _error(response: httpx.Response) -> ApiError:
    try:
        problem = response.json()
    except ValueError:
        problem = {"title": response.reason_phrase, "detail": response.text[:500]}
    return ApiError(response.status_code, problem if isinstance(problem, dict) else {"detail": str(problem)})


def _server_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Parse a text/event-stream (WHATWG HTML, section 9.2.6): fields until a blank line, comments skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield ServerEvent(int(fields.get("id", "0") or 0), fields.get("event", "message"), _data(fields))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = fields[name] + "\n" + value if name == "data" and name in fields else value


def _data(fields: Mapping[str, str]) -> JsonObject:
    data = json.loads(fields["data"])
    return data if isinstance(data, dict) else {"value": data}
