"""Fills a database through the store's own port with finished jobs: what a team's database looks like after a while."""

import random
import time

from db import SqlStore
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.runtime.artifact import digest_of
from tuner.best import BestConfig
from tuner.job import JobSpec, JobState, StopReason, TaskSpec
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import Lease, Measured, MeasurePolicy, Trial
from tuner.task import Task
from workers.host import host_identity

TASKS_PER_JOB = 8
TRIALS_PER_TASK = 64


def fill(store: SqlStore, target: Target, records: int) -> list[dict[str, object]]:
    """At least `records` committed measurements in jobs of 8 tasks; returns the workloads that have a schedule."""
    rng = random.Random(0)
    identity = host_identity(MeasurePolicy())
    shapes: list[dict[str, object]] = []
    while len(shapes) * TRIALS_PER_TASK < records:
        new = [_shape(rng) for _ in range(TASKS_PER_JOB)]
        _job(store, target, identity, new, rng)
        shapes += new
    return shapes


def _shape(rng: random.Random) -> dict[str, object]:
    m, n, k = rng.choice((1, 8, 16, 64, 128)), rng.randrange(64, 16384, 8), rng.randrange(64, 16384, 8)
    return {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "float32"}


def _job(
    store: SqlStore, target: Target, identity: EnvironmentIdentity, shapes: list[dict[str, object]], rng: random.Random
) -> None:
    tasks = tuple(TaskSpec(parse_workload(s)) for s in shapes)
    store.create_job(JobSpec(tasks, max_trials=TASKS_PER_JOB * TRIALS_PER_TASK), None, time.time())
    lease = store.claim("fill", ["cpu"], 600.0)
    assert lease is not None
    for leased in lease.tasks:
        task = Task(tasks[leased.index].workload, target)
        store.bind(lease, leased.task_id, task)
        best = _trials(store, lease, leased.task_id, identity, rng)
        blob = f"{task.key}".encode()
        store.promote(lease, leased.task_id, _best(best, identity, digest_of(blob)), blob)
        store.finish_task(lease, leased.task_id, StopReason.TRIALS)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)


def _trials(
    store: SqlStore, lease: Lease, task_id: int, identity: EnvironmentIdentity, rng: random.Random
) -> tuple[Candidate, float]:
    candidates = [Candidate.of("cpu_gemm_filled", 1, {"a": i, "b": rng.randrange(8)}) for i in range(TRIALS_PER_TASK)]
    best: tuple[Candidate, float] | None = None
    for trial in store.reserve(lease, task_id, [(c, None) for c in candidates]):
        measured = _measured(trial, identity, rng)
        store.commit(lease, task_id, measured)
        latency = measured.measurement.latency_s
        if latency is not None and (best is None or latency < best[1]):
            best = (trial.candidate, latency)
    assert best is not None
    return best


def _measured(trial: Trial, identity: EnvironmentIdentity, rng: random.Random) -> Measured:
    if rng.random() < 0.05:
        return Measured(trial, Measurement(Outcome.BUILD_ERROR, error="no room", identity=identity))
    times = tuple(1e-3 * (1.0 + rng.random()) for _ in range(7))
    return Measured(trial, Measurement(Outcome.OK, times, identity=identity, interval=(time.time(), time.time())))


def _best(best: tuple[Candidate, float], identity: EnvironmentIdentity, artifact: str) -> BestConfig:
    candidate, latency = best
    return BestConfig(
        candidate=candidate,
        artifact=artifact,
        latency_s=latency,
        latency_ci95_s=(latency, latency),
        baseline_name="torch",
        baseline_latency_s=2 * latency,
        speedup=2.0,
        speedup_ci95=(2.0, 2.0),
        served="tilewright",
        identity=identity,
        roofline_bound="memory",
        roofline_fraction=0.5,
        ridge_flop_per_byte=10.0,
    )
