"""Health, metrics, workers and targets; and that nothing blocks the event loop."""

import asyncio
import dataclasses
import time

import httpx
import pytest
from api_world import SKETCHES, claimed_job, new_app, new_client
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from store_nouns import GPU, IDENTITY, TARGET, FakeClock, device

from db.store import SqlStore

GPU_IDENTITY = dataclasses.replace(IDENTITY, kind="cuda", model=GPU.model, arch=GPU.arch, cores=GPU.cores)


def test_ready_means_database_runner_and_device(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    answer = client.get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert all(check["ok"] for check in answer.json()["checks"].values())
    store.heartbeat_devices("runner-1", [device(healthy=False, detail="Xid 79")], 60.0)
    sick = client.get("/health/ready")
    checks = sick.json()["checks"]
    assert (sick.status_code, checks["runner"]["ok"], checks["devices"]["ok"]) == (503, True, False)
    assert "Xid 79" in checks["devices"]["detail"]
    store.heartbeat_devices("runner-1", [device()], 60.0)
    clock.at += 61
    lost = client.get("/health/ready").json()["checks"]
    assert (lost["database"]["ok"], lost["runner"]["ok"], lost["devices"]["ok"]) == (True, False, False)
    assert client.get("/health/live").json()["status"] == "live"


def test_workers_are_listed_alive_or_lost(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    store.heartbeat_devices("runner-2", [device("GPU-1", GPU_IDENTITY)], 600.0)
    clock.at += 61
    items = {w["device_id"]: w for w in client.get("/v1/workers").json()["items"]}
    assert {name: w["alive"] for name, w in items.items()} == {"cpu:host": False, "GPU-1": True}
    assert items["GPU-1"]["target"]["arch"] == "sm_90a"


def test_targets_say_what_can_be_tuned_there(store: SqlStore, clock: FakeClock) -> None:
    with new_client(store, clock, host_targets=(dataclasses.replace(TARGET, model="other"), GPU)) as client:
        items = {i["target"]["kind"]: i for i in client.get("/v1/targets").json()["items"]}
    # The host's own CPU entry gives way to what a runner has reported.
    assert (items["cpu"]["target"]["model"], items["cpu"]["devices"], items["cpu"]["ops"]) == ("EPYC 7763", 1, ["gemm"])
    assert items["cpu"]["sketches"] == list(SKETCHES)
    assert (items["cuda"]["devices"], items["cuda"]["ops"]) == (0, [])


def test_metrics_count_jobs_trials_lookups_and_requests(client: TestClient, store: SqlStore) -> None:
    claimed_job(store, [0.003, None, 0.002])
    client.get("/v1/schedules/best?op=gemm&m=1&n=2&k=3&dtype=fp32")
    client.get("/v1/jobs/job_none")
    client.get("/v1/jobs/job_other")
    samples = {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for s in family.samples
    }
    assert samples["tilewright_jobs", ("state", "running")] == 1
    assert samples["tilewright_trials_total", ("outcome", "OK")] == 2
    assert samples["tilewright_trials_total", ("outcome", "BUILD_ERROR")] == 1
    assert samples["tilewright_lookups_total", ("status", "missed")] == 1
    assert samples["tilewright_devices", ("health", "healthy"), ("kind", "cpu")] == 1
    # Labelled by the route's pattern: ids would make a series each.
    labels = (("method", "GET"), ("route", "/v1/jobs/{job_id}"), ("status", "404"))
    assert samples["tilewright_http_request_seconds_count", *labels] == 2


class SlowStore:
    """A real store whose list of jobs takes its time."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def jobs(self, *args: object) -> object:
        time.sleep(1.0)
        return self._store.jobs(*args)  # type: ignore[arg-type]


def test_slow_store_calls_do_not_hold_up_the_event_loop(store: SqlStore, clock: FakeClock) -> None:
    app = new_app(SlowStore(store), clock)  # type: ignore[arg-type]

    async def work() -> tuple[list[int], float]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            slow = [asyncio.create_task(client.get("/v1/jobs")) for _ in range(4)]
            await asyncio.sleep(0.1)
            done_before = [task.done() for task in slow]
            live = await client.get("/health/live")
            still_waiting = [not task.done() for task in slow]
            answers = await asyncio.gather(*slow)
        assert not any(done_before)
        return [live.status_code, *(a.status_code for a in answers)], sum(still_waiting)

    statuses, waiting = asyncio.run(work())
    assert statuses == [200] * 5
    assert waiting == 4  # the probe was answered while all four were in the store


@pytest.mark.parametrize("path", ["/v1/workers?x=1", "/v1/targets?x=1", "/health/live?x=1"])
def test_unknown_parameters_are_named(steady: TestClient, path: str) -> None:
    answer = steady.get(path)
    assert (answer.status_code, answer.json()["field"]) == (422, "x")
