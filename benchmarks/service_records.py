"""Fills a database with finished jobs: what a team's database looks like after a while."""

import itertools
import random
import time
from collections.abc import Iterator

from db import FinishedTask, FinishedTrial, SqlStore
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.runtime.artifact import digest_of
from tuner.best import BestConfig
from tuner.job import JobSpec, TaskSpec
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from tuner.task import Task
from workers.host import host_identity

TASKS_PER_JOB = 8
TRIALS_PER_TASK = 64


def fill(store: SqlStore, target: Target, records: int) -> list[dict[str, object]]:
    """At least `records` measurements in jobs of 8 tasks; returns the workloads that have a schedule.

    A job is one transaction with bulk inserts; its rows are those that a runner's calls leave (a test of the store
    compares the two).
    """
    rng = random.Random(0)
    identity = host_identity(MeasurePolicy())
    shapes: list[dict[str, object]] = []
    while len(shapes) * TRIALS_PER_TASK < records:
        new = [_shape(rng) for _ in range(TASKS_PER_JOB)]
        tasks = tuple(TaskSpec(parse_workload(s)) for s in new)
        finished = [_task(Task(t.workload, target), identity, rng) for t in tasks]
        store.add_finished_job(JobSpec(tasks, max_trials=TASKS_PER_JOB * TRIALS_PER_TASK), finished)
        shapes += new
    return shapes


def _shape(rng: random.Random) -> dict[str, object]:
    m, n, k = rng.choice((1, 8, 16, 64, 128)), rng.randrange(64, 16384, 8), rng.randrange(64, 16384, 8)
    return {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "float32"}


def _task(task: Task, identity: EnvironmentIdentity, rng: random.Random) -> FinishedTask:
    trials = list(itertools.islice(_trials(identity, rng), TRIALS_PER_TASK))
    timed = [(t.measurement.latency_s, t.candidate) for t in trials if t.measurement.latency_s is not None]
    latency, candidate = min(timed, key=lambda pair: pair[0])
    blob = task.key.encode()
    return FinishedTask(task, trials, (_best(candidate, latency, identity, digest_of(blob)), blob))


def _trials(identity: EnvironmentIdentity, rng: random.Random) -> Iterator[FinishedTrial]:
    for i in itertools.count():
        candidate = Candidate.of("cpu_gemm_filled", 1, {"a": i, "b": rng.randrange(8)})
        yield FinishedTrial(candidate, _measurement(identity, rng))


def _measurement(identity: EnvironmentIdentity, rng: random.Random) -> Measurement:
    if rng.random() < 0.05:
        return Measurement(Outcome.BUILD_ERROR, error="no room", identity=identity)
    times = tuple(1e-3 * (1.0 + rng.random()) for _ in range(7))
    return Measurement(Outcome.OK, times, identity=identity, interval=(time.time(), time.time()))


def _best(candidate: Candidate, latency: float, identity: EnvironmentIdentity, artifact: str) -> BestConfig:
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
