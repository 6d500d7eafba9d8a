"""The live events of a job: in order, resumable, shared between watchers, ending with the job."""

import json
import threading
from collections.abc import Iterator, Sequence

import httpx
import pytest
from api_world import LiveServer, finish, measure, new_client
from fastapi.testclient import TestClient
from store_nouns import FakeClock, claimed, job_spec

from db.store import SqlStore
from tuner.views import Event


def parse(lines: Iterator[str]) -> Iterator[tuple[int, str, dict[str, object]]]:
    """(id, event, data) of each message; comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if fields:
                yield int(fields["id"]), fields["event"], json.loads(fields["data"], parse_constant=pytest.fail)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def stream(client: TestClient, job_id: str, **headers: str) -> list[tuple[int, str, dict[str, object]]]:
    answer = client.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return list(parse(iter(answer.text.splitlines())))


@pytest.fixture
def ended(store: SqlStore) -> str:
    """A completed job of four trials."""
    lease = claimed(store, job_spec(max_trials=4))
    measure(store, lease, [0.003, None, 0.002, 0.004])
    finish(store, lease)
    return lease.job_id


def test_an_ended_job_is_told_in_full_and_the_stream_ends(client: TestClient, ended: str) -> None:
    events = stream(client, ended)
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert events[0][2]["state"] == "queued"
    assert [data["outcome"] for _, kind, data in events if kind == "trial"] == ["OK", "BUILD_ERROR", "OK", "OK"]
    assert [data["latency_s"] for _, kind, data in events if kind == "best"][:2] == [0.003, 0.002]
    assert (events[-1][1], events[-1][2]["state"]) == ("job", "completed")


def test_a_trial_event_is_the_trials_own_body(client: TestClient, ended: str) -> None:
    told = next(data for _, kind, data in stream(client, ended) if kind == "trial")
    listed = client.get(f"/v1/jobs/{ended}/trials").json()["items"][0]
    assert {name: told[name] for name in listed} == listed


def test_the_stream_resumes_after_the_last_event_seen(client: TestClient, ended: str) -> None:
    events = stream(client, ended)
    assert stream(client, ended, **{"Last-Event-ID": "3"}) == events[3:]
    after = client.get(f"/v1/jobs/{ended}/events?after=3")
    assert list(parse(iter(after.text.splitlines()))) == events[3:]
    # 204 is how a browser is told not to connect again.
    last = str(events[-1][0])
    assert client.get(f"/v1/jobs/{ended}/events", headers={"Last-Event-ID": last}).status_code == 204
    assert client.get(f"/v1/jobs/{ended}/events", headers={"Last-Event-ID": "999999"}).status_code == 204
    for wrong in ("x", "-1", "1.5", "9" * 30):
        answer = client.get(f"/v1/jobs/{ended}/events", headers={"Last-Event-ID": wrong})
        assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


class CountingStore:
    """A real store that counts how often events are read."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def events(self, job_id: str, after: int, limit: int) -> Sequence[Event]:
        self.reads += 1
        return self._store.events(job_id, after, limit)


def test_events_arrive_live_and_every_watcher_gets_all_of_them(store: SqlStore, clock: FakeClock) -> None:
    lease = claimed(store, job_spec(max_trials=4))
    counting = CountingStore(store)
    found: dict[int, list[int]] = {}
    first = threading.Barrier(13)

    def watch(number: int) -> None:
        url = f"{server.url}/v1/jobs/{lease.job_id}/events"
        with httpx.stream("GET", url, timeout=30) as answer:
            waiting = True
            for sequence, _, _ in parse(answer.iter_lines()):
                found.setdefault(number, []).append(sequence)
                if waiting:
                    first.wait(30)
                waiting = False

    with LiveServer(counting, clock, event_poll_s=0.1) as server:  # type: ignore[arg-type]
        threads = [threading.Thread(target=watch, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        first.wait(30)  # all are connected and have seen the first event; the job is still running
        begun = counting.reads
        measure(store, lease, [0.003, None, 0.002, 0.004])
        finish(store, lease)
        for thread in threads:
            thread.join(30)
    last = store.job(lease.job_id).last_event
    assert found == {i: list(range(1, last + 1)) for i in range(12)}
    # One poller for all: twelve watchers that each read the store would need at least twelve reads.
    assert counting.reads - begun < 12


def test_a_quiet_stream_has_heartbeats(store: SqlStore, clock: FakeClock) -> None:
    lease = claimed(store, job_spec())
    with LiveServer(store, clock, event_heartbeat_s=0.05) as server:
        with httpx.stream("GET", f"{server.url}/v1/jobs/{lease.job_id}/events", timeout=30) as answer:
            assert next(line for line in answer.iter_lines() if line.startswith(":"))


def test_there_is_an_end_to_the_watchers(store: SqlStore, clock: FakeClock) -> None:
    lease = claimed(store, job_spec())
    with new_client(store, clock, max_watchers=0) as client:
        answer = client.get(f"/v1/jobs/{lease.job_id}/events")
        assert (answer.status_code, answer.json()["code"]) == (503, "too-many-watchers")
        assert answer.headers["retry-after"] == "2"
