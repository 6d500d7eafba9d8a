"""What a service meets in a month: a full disk, a database that is away. It says so, loses nothing, and goes on."""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.chaos_world import DURABLE
from tests.support.postgres_server import PostgresMissing, PostgresServer
from tests.support.running_service import RunningService

GEMM = {"op": "gemm", "m": 128, "n": 128, "k": 128, "dtype": "float32"}
SCRIPT = {"default": {"latency_s": "hash", "do": "sleep", "seconds": 0.05}, "baseline": {"latency_s": 0.0015}}


def answer(service: RunningService, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{service.port}{path}", timeout=30.0)


def post(service: RunningService) -> httpx.Response:
    body = {"workload": GEMM, "target": "cpu", "max_trials": 4}
    return httpx.post(f"http://127.0.0.1:{service.port}/v1/jobs", json=body, timeout=60.0)


@contextlib.contextmanager
def no_room(service: RunningService) -> Iterator[None]:
    """No file of the service's own processes may grow beyond 1 KiB, as on a file system without a free block."""
    assert service.process is not None
    held = [psutil.Process(service.process.pid), *service.find("api.runner")]
    before = [p.rlimit(psutil.RLIMIT_FSIZE) for p in held]
    for p in held:
        p.rlimit(psutil.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for p, limits in zip(held, before, strict=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                p.rlimit(psutil.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_job_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    with RunningService(tmp_path, SCRIPT) as service:
        job = service.submit(workload=GEMM, max_trials=120)
        service.wait_trials(job, 10)
        with no_room(service):
            refused = post(service)
            assert refused.status_code == 503
            assert refused.headers["content-type"].startswith("application/problem+json")
            assert refused.json()["code"] == "store-unavailable"
            ready = answer(service, "/health/ready")
            assert ready.status_code == 503
            assert not ready.json()["checks"]["database"]["ok"]
            time.sleep(8.0)  # past the lease
            shown = answer(service, f"/v1/jobs/{job}")
            assert shown.status_code == 200, "what is stored can be read meanwhile"
            before = {(t["number"], t["latency_s"]) for t in service.trials(job)}
        ended = service.finished(job, 120)
        after = service.trials(job)
        assert (ended["state"], ended["trials"]["done"]) == ("completed", 120)
        assert before <= {(t["number"], t["latency_s"]) for t in after}
        assert sorted(t["number"] for t in after) == list(range(120))
        assert post(service).status_code == 201
        assert answer(service, "/health/ready").status_code == 200


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer(DURABLE)
    except PostgresMissing as fault:
        pytest.skip(str(fault))
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_database_that_is_away_for_a_minute(tmp_path: Path, server: PostgresServer, how: str) -> None:
    """Killed: connections are refused at once. Frozen: it takes them and never answers."""
    url = server.create_database("away")
    with RunningService(tmp_path, SCRIPT, "--db", url) as service:
        job = service.submit(workload=GEMM, max_trials=150)
        service.wait_trials(job, 10)
        assert server.pid is not None
        tree = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        for p in tree:
            p.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        gone = time.monotonic()
        if how == "killed":
            ready = answer(service, "/health/ready")
            assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
            assert post(service).status_code == 503
        assert answer(service, "/health/live").status_code == 200
        time.sleep(max(0.0, 60.0 - (time.monotonic() - gone)))
        if how == "killed":
            assert server.start_again()
        else:
            for p in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    os.kill(p.pid, signal.SIGCONT)
        service.wait(lambda: answer(service, "/health/ready").status_code == 200, 60, "ready again")
        ended = service.finished(job, 120)
        assert (ended["state"], ended["trials"]["done"]) == ("completed", 150)
        assert sorted(t["number"] for t in service.trials(job)) == list(range(150))
