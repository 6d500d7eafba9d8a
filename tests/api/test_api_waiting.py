"""A job that nobody can take says what it lacks, and blocks nobody."""

import dataclasses

from api_world import new_client
from fastapi.testclient import TestClient
from store_nouns import GPU, TARGET, FakeClock, device, gemm, job_spec

from api import waiting
from db.store import SqlStore
from tuner.job import JobState
from tuner.task import Task

H200 = {"kind": "cuda", "arch": "sm_90a"}


def shown(client: TestClient, job: str) -> str | None:
    answer = client.get(f"/v1/jobs/{job}").json()
    said: str | None = answer["waiting_for"]
    return said


def test_without_a_runner_a_queued_job_says_so(bare_store: SqlStore, clock: FakeClock) -> None:
    store = bare_store
    client = new_client(store, clock)
    job, _ = store.create_job(job_spec(), None, clock.now())
    assert "no runner is there" in (shown(client, job.id) or "")
    store.heartbeat_devices("r", [device()], 9.0)
    assert shown(client, job.id) is None
    clock.at += 30.0
    assert "no runner is there" in (shown(client, job.id) or "")


def test_a_device_that_nobody_has_is_named_and_the_job_behind_runs(bare_store: SqlStore, clock: FakeClock) -> None:
    store = bare_store
    client = new_client(store, clock)
    store.heartbeat_devices("gone", [dataclasses.replace(device(), device_id="gpu-0", target=GPU)], 9.0)
    clock.at += 25.0
    store.heartbeat_devices("r", [device()], 9.0)
    stuck, _ = store.create_job(job_spec(target=H200), None, clock.now())
    behind, _ = store.create_job(job_spec(), None, clock.now())
    said = shown(client, stuck.id) or ""
    assert said.startswith("no device of cuda sm_90a is there now (gpu-0 was last seen 25 s ago)")
    lease = store.claim("r", ["cpu"], 30.0, None, [TARGET])
    assert lease is not None
    assert lease.job_id == behind.id
    assert shown(client, behind.id) is None


def test_an_arch_that_no_runner_has_is_passed_by(bare_store: SqlStore, clock: FakeClock) -> None:
    store = bare_store
    first, _ = store.create_job(job_spec(target={"kind": "cpu", "arch": "sapphirerapids"}), None, clock.now())
    second, _ = store.create_job(job_spec(gemm(m=8), target={"kind": "cpu", "arch": "znver3"}), None, clock.now())
    lease = store.claim("r", ["cpu"], 30.0, None, [TARGET])
    assert lease is not None
    assert lease.job_id == second.id
    assert store.claim("r", ["cpu"], 30.0, None, [TARGET]) is None
    other = store.claim("s", ["cpu"], 30.0, None, [dataclasses.replace(TARGET, arch="sapphirerapids")])
    assert other is not None
    assert other.job_id == first.id


def test_a_job_whose_device_left_waits_for_one_like_it(bare_store: SqlStore, clock: FakeClock) -> None:
    store = bare_store
    client = new_client(store, clock)
    job, _ = store.create_job(job_spec(), None, clock.now())
    store.heartbeat_devices("r", [device()], 9.0)
    lease = store.claim("r", ["cpu"], 30.0, None, [TARGET])
    assert lease is not None
    store.bind(lease, lease.tasks[0].task_id, Task(job.spec.tasks[0].workload, TARGET))
    store.release(lease)
    other = dataclasses.replace(TARGET, arch="znver4")
    assert store.claim("r", ["cpu"], 30.0, None, [other]) is None
    clock.at += 20.0
    store.heartbeat_devices("r", [dataclasses.replace(device(), device_id="cpu:other", target=other)], 9.0)
    assert "on which the job began" in (shown(client, job.id) or "")
    again = store.claim("r", ["cpu"], 30.0, None, [other, TARGET])
    assert again is not None
    assert again.token == lease.token + 1


def test_a_device_set_aside_is_given_with_its_reason(bare_store: SqlStore, clock: FakeClock) -> None:
    store = bare_store
    job, _ = store.create_job(job_spec(), None, clock.now())
    sick = dataclasses.replace(device(), healthy=False, detail="wrong answer on a known product")
    store.heartbeat_devices("r", [sick], 9.0)
    said = waiting.reason(store.job(job.id), store.devices(clock.now()), clock.now()) or ""
    assert "is set aside" in said
    assert "wrong answer on a known product" in said
    running = dataclasses.replace(store.job(job.id), state=JobState.RUNNING)
    assert waiting.reason(running, [], clock.now()) is None
