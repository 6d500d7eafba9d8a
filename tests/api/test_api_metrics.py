"""What /metrics says of the work: seconds, queue, leases, idle devices."""

import dataclasses

import pytest
from api_world import claimed_job, finish, new_client
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from store_nouns import FakeClock, candidate, claimed, device, gemm, job_spec, ok

from api.metrics import WINDOW_S
from db.store import SqlStore
from tuner.ports import Measured


def samples(client: TestClient) -> dict[str, float]:
    out = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for s in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))
            out[f"{s.name}{{{labels}}}" if labels else s.name] = s.value
    return out


def commit(store: SqlStore, build: list[float], held: list[float]) -> None:
    lease = claimed(store, job_spec(gemm(), max_trials=len(build) + 10))
    task = lease.tasks[0].task_id
    trials = store.reserve(lease, task, [(candidate(i), None) for i in range(len(build))])
    for trial, built, seconds in zip(trials, build, held, strict=True):
        measurement = dataclasses.replace(ok(0.001), build_secs=built, interval=(100.0, 100.0 + seconds))
        store.commit(lease, task, Measured(trial, measurement))


def test_build_and_measure_seconds_are_histograms(client: TestClient, store: SqlStore) -> None:
    commit(store, [0.05, 0.5, 200.0], [0.02, 2.0, 2.5])
    assert samples(client)["tilewright_build_seconds_count"] == 0, "told with the runner's next heartbeat"
    store.heartbeat_devices("host:1", [device()], 60.0)
    store.heartbeat_devices("host:2", [device()], 60.0)
    found = samples(client)
    build = {le: found[f"tilewright_build_seconds_bucket{{le={le}}}"] for le in ("0.1", "0.3", "1", "120", "+Inf")}
    assert build == {"0.1": 1, "0.3": 1, "1": 2, "120": 2, "+Inf": 3}
    assert found["tilewright_build_seconds_sum"] == pytest.approx(200.55)
    assert found["tilewright_measure_seconds_bucket{le=3}"] == 3
    assert found["tilewright_measure_seconds_sum"] == pytest.approx(4.52)
    assert found["tilewright_device_busy_seconds_total{kind=cpu}"] == pytest.approx(4.52)


def test_the_queue_and_lost_leases(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    claimed_job(store, [0.003, None])  # one of 6 trials, 2 of them done
    store.create_job(job_spec(max_trials=10), None, clock.at + 1.0)
    found = samples(client)
    assert (found["tilewright_queue_jobs"], found["tilewright_queue_trials"]) == (1, 14)
    assert found["tilewright_leases_lost_total"] == 0
    clock.at += 31.0
    store.interrupt_expired()
    found = samples(client)
    assert (found["tilewright_queue_jobs"], found["tilewright_leases_lost_total"]) == (2, 1)
    again = store.claim("r", ["cpu"], 30.0)
    finish(store, again)  # type: ignore[arg-type]
    assert samples(client)["tilewright_queue_trials"] == 10


def test_the_idle_share_is_of_the_last_minutes(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    def beat(times: int) -> None:
        for _ in range(times):
            clock.at += 3.0
            store.heartbeat_devices("runner-1", [device()], 60.0)

    assert "tilewright_device_idle_ratio{kind=cpu}" not in samples(client), "nothing is known yet"
    beat(20)
    assert samples(client)["tilewright_device_idle_ratio{kind=cpu}"] == 1.0
    commit(store, [0.1], [30.0])
    beat(20)
    found = samples(client)
    assert found["tilewright_device_alive_seconds_total{kind=cpu}"] == pytest.approx(120.0)
    assert found["tilewright_device_idle_ratio{kind=cpu}"] == pytest.approx(0.75)
    for _ in range(12):
        beat(int(WINDOW_S / 30))
        found = samples(client)
    assert found["tilewright_device_idle_ratio{kind=cpu}"] == 1.0, "what was long ago is forgotten"


def test_a_heartbeat_that_fails_loses_no_count(
    store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, [0.5], [1.0])
    with monkeypatch.context() as broken:
        broken.setattr(store._tx, "write", lambda _: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            store.heartbeat_devices("host:1", [device()], 60.0)
    store.heartbeat_devices("host:1", [device()], 60.0)
    with new_client(store, clock) as client:
        assert samples(client)["tilewright_build_seconds_count"] == 1
