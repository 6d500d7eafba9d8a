"""A Ray cluster of several hosts: devices that join late are used, work of devices that leave goes on elsewhere, and a
job that nothing can run says so and blocks nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos_world import Plan, World
from tilewright.client import Client, JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

DEVICES = [
    {"id": "early", "arch": "alpha"},
    {"id": "late", "arch": "alpha", "self_tests": [{"free_memory": 0.01}, {}]},
    {"id": "other", "kind": "cuda", "arch": "sm_80", "model": "A100", "cores": 108},
]
SCRIPT = {
    "devices": DEVICES,
    "default": {"latency_s": "hash", "do": "sleep", "seconds": 0.1},
    "baseline": {"latency_s": 0.0015},
}
TASKS = [{"workload": {"op": "gemm", "m": m, "n": 128, "k": 128, "dtype": "float32"}} for m in range(16, 144, 16)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    plan = Plan(hosts=(("early",), ("other",)), script=SCRIPT, runners=1, jobs_at_a_time=2)
    with World(plan, tmp_path / "world") as world:
        world.wait_ready(2)
        yield world


def devices(client: Client) -> dict[str, JsonObject]:
    return {w["device_id"]: w for w in client.get("/v1/workers")["items"] if w["alive"]}


def submit(client: Client, arch: str, trials: int, kind: str = "cpu", tasks: list[dict[str, object]] = TASKS) -> str:
    body = {"tasks": tasks, "target": {"kind": kind, "arch": arch}, "max_trials": trials}
    return str(client.submit(body)["id"])


def used(client: Client, job: str) -> set[str]:
    return {t["device"] for t in client.pages(f"/v1/jobs/{job}/trials", {"limit": 100})}


def test_devices_join_and_leave_in_the_middle_of_a_job(world: World) -> None:
    with world.client() as client:
        assert devices(client)["other"]["target"]["model"] == "A100"
        job = submit(client, "alpha", 400)
        world.until(lambda: client.job(job)["trials"]["done"] >= 10, 60, "the first trials")
        world.add_host("joined", ["late"])
        world.until(lambda: "late" in devices(client), 60, "the late device")
        assert not devices(client)["late"]["healthy"]
        assert "memory nearly full" in devices(client)["late"]["detail"]
        world.until(lambda: "late" in used(client, job), 60, "work of the late device")
        world.end("host-0")
        world.until(lambda: "early" not in devices(client), 60, "the early device's leave")
        world.until(lambda: client.job(job)["state"] == "completed", 120, "the end")
        assert client.job(job)["trials"]["done"] == 400
        assert used(client, job) == {"early", "late"}
        # Nothing is left for the first architecture once its last device has gone: said within 30 s, and nobody waits.
        world.end("joined")
        world.until(lambda: set(devices(client)) == {"other"}, 60, "the other device alone")
        stuck = submit(client, "alpha", 16)
        said = client.job(stuck)["waiting_for"]
        assert said.startswith("no device of cpu alpha is there now"), said
        assert client.job(stuck)["state"] == "queued"
        world.add_host("back", ["early"])
        world.until(lambda: client.job(stuck)["state"] == "completed", 120, "the waiting job")
