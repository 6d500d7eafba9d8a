"""A service over a real SQLite store, with a sketch that needs no compiler, for the tests of the HTTP API."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from store_nouns import ARTIFACT, FakeClock, best_config, claimed, failed, job_spec, ok

from api.app import create_app
from api.settings import ApiSettings
from db.factory import open_store
from db.store import SqlStore
from search_space import registry
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload
from tuner.job import JobState, StopReason
from tuner.ports import Lease, Measured

KEY = "correct-horse-battery-staple"


@dataclass(frozen=True)
class Tiled(Sketch):
    """float32 GEMM only; m is a run-time extent; a tile must not be larger than n."""

    name = "tiled"
    version = 1
    op = "gemm"
    target_kind = "cpu"
    runtime_extents = ("m",)

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        assert isinstance(workload, GemmWorkload)
        if workload.dtype_a != "float32":
            return Refusal("dtype_a", f"no sketch for {workload.dtype_a} on {target.kind}", ("float32",))
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return (Knob("tile", (1, 2, 4, 8, 16)),)

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        assert isinstance(workload, GemmWorkload)
        return Constraint("tile", "wider than n") if int(knobs["tile"]) > workload.n else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return Resources()

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return Traffic(float(workload.min_bytes()))

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return {}


class HalfPrecision(Tiled):
    """What only the GPU has."""

    name = "fast"
    target_kind = "cuda"

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        assert isinstance(workload, GemmWorkload)
        return None if workload.dtype_a == "float16" else Refusal("dtype_a", "float16 only", ("float16",))


SKETCHES: dict[str, Sketch] = {"tiled": Tiled()}


@contextlib.contextmanager
def one_sketch() -> Iterator[None]:
    """The registry holds SKETCHES alone."""
    before = registry.all_sketches
    registry.all_sketches = lambda: SKETCHES
    try:
        yield
    finally:
        registry.all_sketches = before


def sketch_version(name: str) -> int | None:
    sketch = SKETCHES.get(name)
    return None if sketch is None else sketch.version


def new_store(file: Path, clock: FakeClock) -> SqlStore:
    return open_store(str(file), clock=clock, sketch_version=sketch_version)


def new_app(store: SqlStore, clock: FakeClock, **settings: object) -> FastAPI:
    told = dataclasses.replace(ApiSettings(now=clock.now, event_poll_s=0.02), **settings)  # type: ignore[arg-type]
    return create_app(store, told)


def new_client(store: SqlStore, clock: FakeClock, **settings: object) -> TestClient:
    """A client on loopback; a fault of the service is an answer (500), not an exception of the test."""
    return TestClient(new_app(store, clock, **settings), base_url="http://localhost", raise_server_exceptions=False)


def tiled(tile: int = 4) -> Candidate:
    return Candidate.of("tiled", 1, {"tile": tile})


def measure(store: SqlStore, lease: Lease, latencies: list[float | None], task: int = 0) -> None:
    """Commit one trial per entry; None is a build that failed. Each has a knob value of its own."""
    task_id = lease.tasks[task].task_id
    for number, latency in enumerate(latencies):
        candidate = Candidate.of("tiled", 1, {"tile": 4, "number": number})
        (trial,) = store.reserve(lease, task_id, [(candidate, 0.5)])
        store.commit(lease, task_id, Measured(trial, failed() if latency is None else ok(latency)))


def claimed_job(store: SqlStore, latencies: list[float | None]) -> Lease:
    """A running job of one small GEMM with its first trials measured."""
    lease = claimed(store, job_spec(max_trials=len(latencies) + 4))
    measure(store, lease, latencies)
    return lease


def finish(store: SqlStore, lease: Lease, latency_s: float = 0.001, tile: int = 4) -> list[str]:
    """Promote a winner for every task and complete the job; the schedules' ids."""
    ids = []
    for task in lease.tasks:
        store.set_baseline(lease, task.task_id, "torch.matmul", ok(0.002))
        ids.append(store.promote(lease, task.task_id, best_config(latency_s, chosen=tiled(tile)), ARTIFACT))
        store.finish_task(lease, task.task_id, StopReason.TRIALS)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)
    return ids


class LiveServer:
    """The application under uvicorn, on a free port of loopback, in a thread."""

    def __init__(self, store: SqlStore, clock: FakeClock, **settings: object) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                new_app(store, clock, **settings), log_level="error", lifespan="on", timeout_graceful_shutdown=1
            )
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()
