"""The HTTP client: events, errors, pages."""

import httpx
import pytest

from tilewright.client import ApiError, Client, Unreachable


def client(handler: object) -> Client:
    return Client("http://service", transport=httpx.MockTransport(handler))  # type: ignore[arg-type]


def test_events_are_parsed_with_comments_and_many_data_lines() -> None:
    stream = (
        ': hello\n\nid: 1\nevent: trial\ndata: {"a":\ndata: 1}\n\nid: 2\nevent: job\ndata: {}\n\nid: 3\nevent: cut\n'
    )
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("last-event-id"))
        return httpx.Response(200, text=stream)

    with client(handler) as c:
        events = list(c.events("job_1", after=7))
    assert seen == ["7"]
    assert [(e.sequence, e.kind, e.data) for e in events] == [(1, "trial", {"a": 1}), (2, "job", {})]


def test_a_problem_document_becomes_an_error_with_code_and_detail() -> None:
    problem = {"type": "about:blank", "title": "Untuned", "status": 404, "detail": "no schedule", "code": "untuned"}
    with client(lambda request: httpx.Response(404, json=problem)) as c, pytest.raises(ApiError) as caught:
        c.best({"op": "gemm", "m": 1})
    assert (caught.value.status, caught.value.code, str(caught.value)) == (404, "untuned", "no schedule")


def test_an_answer_that_is_no_json_is_still_an_error_with_its_text() -> None:
    with client(lambda request: httpx.Response(502, text="bad gateway")) as c, pytest.raises(ApiError, match="gateway"):
        c.job("job_1")


def test_booleans_travel_as_the_api_spells_them_and_none_does_not_travel() -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.query.decode())
        return httpx.Response(200, json={})

    with client(handler) as c:
        c.best({"op": "gemm", "m": 16, "trans_b": True}, target="cpu", arch=None)
    assert seen == ["op=gemm&m=16&trans_b=true&target=cpu"]


def test_pages_follow_the_cursor_to_its_end() -> None:
    pages = {None: ([1, 2], "x"), "x": ([3], None)}

    def handler(request: httpx.Request) -> httpx.Response:
        items, following = pages[request.url.params.get("cursor")]
        return httpx.Response(200, json={"items": [{"n": i} for i in items], "next_cursor": following})

    with client(handler) as c:
        assert [item["n"] for item in c.pages("/v1/jobs")] == [1, 2, 3]


def test_no_server_is_unreachable() -> None:
    with Client("http://127.0.0.1:1") as c, pytest.raises(Unreachable, match="no answer"):
        c.job("job_1")


def test_an_address_that_is_none_is_refused_before_anything_is_sent() -> None:
    for url in ("foo", "http://[::1", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="not "):
            Client(url)


def test_a_page_of_another_server_is_not_taken_for_an_answer() -> None:
    with (
        client(lambda request: httpx.Response(200, text="<html>")) as c,
        pytest.raises(Unreachable, match="no tilewright"),
    ):
        c.job("job_1")


def test_a_number_that_json_cannot_hold_is_named() -> None:
    body = {"tasks": [{"workload": {"op": "attention", "scale": float("nan")}}]}
    with client(lambda request: httpx.Response(500)) as c, pytest.raises(ApiError) as caught:
        c.submit(body)
    assert (caught.value.status, caught.value.problem["field"]) == (422, "tasks.0.workload.scale")


@pytest.mark.parametrize("job", ["../schedules/best", "a/b", "a?limit=1", "a#b", "job 1", "ü", "%2e%2e"])
def test_an_id_stays_one_part_of_the_path(job: str) -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return httpx.Response(404, json={"detail": "no such job", "code": "not-found"})

    with client(handler) as c:
        for call in (c.job, c.schedule, c.artifact, lambda i: c.act(i, "cancel"), lambda i: list(c.events(i))):
            with pytest.raises(ApiError, match="no such job"):
                call(job)
    assert [path.count("/") for path in seen] == [3, 3, 4, 4, 4]
    assert not any("?" in path or ".." in path.split("/") for path in seen)


@pytest.mark.parametrize("job", ["", " ", ".", ".."])
def test_an_id_that_is_none_is_not_found_and_nothing_is_sent(job: str) -> None:
    with client(lambda request: pytest.fail(str(request.url))) as c, pytest.raises(ApiError) as caught:
        c.job(job)
    assert caught.value.status == 404
