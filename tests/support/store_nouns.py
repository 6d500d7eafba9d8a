"""Nouns for the tests of the store: a small job, a machine, measurements that went well and badly."""

import dataclasses
import hashlib
from dataclasses import dataclass

from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity, Observation
from search_space.target import Target
from search_space.workload import Workload, parse_workload
from tuner.best import BestConfig
from tuner.job import JobSpec
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Lease, Measured, Trial
from tuner.task import Task

TARGET = Target("cpu", "znver3", "EPYC 7763", 2, vector_bits=256, memory_bytes=2**34, features=("avx2", "fma"))
GPU = Target("cuda", "sm_90a", "NVIDIA H200", 132, memory_bytes=2**37)
IDENTITY = EnvironmentIdentity("cpu", "EPYC 7763", "znver3", 2, "glibc 2.36", "", "0.27.0", "LLVM 20", "v1/warm")
ARTIFACT = b"\x7fELF not really"


@dataclass
class FakeClock:
    """A clock that only a test moves."""

    at: float = 1_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def gemm(m: int = 4, n: int = 8, k: int = 16, **more: object) -> Workload:
    return parse_workload({"op": "gemm", "m": m, "n": n, "k": k, "dtype": "float32", **more})


def job_spec(*workloads: Workload, **more: object) -> JobSpec:
    tasks = [{"workload": w.to_json()} for w in workloads or (gemm(),)]
    return JobSpec.from_json({"tasks": tasks, **more})


def candidate(number: int, sketch: str = "tiled", version: int = 1) -> Candidate:
    return Candidate.of(sketch, version, {"tile": number, "pack": True, "order": "mn"})


def candidates(count: int, first: int = 0) -> list[tuple[Candidate, float | None]]:
    return [(candidate(i), 0.5) for i in range(first, first + count)]


def ok(latency_s: float, identity: EnvironmentIdentity = IDENTITY) -> Measurement:
    return Measurement(
        Outcome.OK,
        (latency_s,),
        interval=(10.0, 11.0),
        identity=identity,
        observation=Observation("cpu:host", "host", details={"load": 0.5}),
        build_secs=0.25,
        max_rel_err=1e-6,
        ci95_secs=(latency_s * 0.99, latency_s * 1.01),
    )


def failed(outcome: Outcome = Outcome.BUILD_ERROR, error: str = "undefined symbol") -> Measurement:
    return Measurement(outcome, error=error, identity=IDENTITY)


def measured(trial: Trial, latency_s: float | None = 0.001) -> Measured:
    return Measured(trial, failed() if latency_s is None else ok(latency_s))


def best_config(
    latency_s: float = 0.001,
    identity: EnvironmentIdentity = IDENTITY,
    chosen: Candidate | None = None,
    artifact: bytes = ARTIFACT,
) -> BestConfig:
    return BestConfig(
        candidate=chosen or candidate(0),
        artifact=hashlib.sha256(artifact).hexdigest(),
        latency_s=latency_s,
        latency_ci95_s=(latency_s * 0.99, latency_s * 1.01),
        baseline_name="torch.matmul",
        baseline_latency_s=0.002,
        speedup=0.002 / latency_s,
        speedup_ci95=(1.9, 2.1),
        served="tilewright",
        identity=identity,
        roofline_bound="compute",
        roofline_fraction=0.8,
        ridge_flop_per_byte=12.5,
        max_rel_err=1e-6,
        trials=5,
    )


def device(device_id: str = "cpu:host", identity: EnvironmentIdentity = IDENTITY, **more: object) -> DeviceInfo:
    target = TARGET if identity.kind == "cpu" else GPU
    info = DeviceInfo(device_id, target, identity, None)
    return dataclasses.replace(info, **more)  # type: ignore[arg-type]


def claimed(store: object, spec: JobSpec, target: Target = TARGET, lease_s: float = 30.0) -> Lease:
    """A job of `spec`, created, claimed and with every task bound to `target`."""
    job, _ = store.create_job(spec, None, 1_000_000.0)  # type: ignore[attr-defined]
    lease: Lease = store.claim("runner-1", [target.kind], lease_s)  # type: ignore[attr-defined]
    assert lease.job_id == job.id
    for task in lease.tasks:
        store.bind(lease, task.task_id, Task(spec.tasks[task.index].workload, target))  # type: ignore[attr-defined]
    return lease
