"""The whole loop as a benchmark uses it: a job on a fresh database, and a second measurement of its winners."""

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api.runner.service import Runner
from api.wiring import ClosableMeasurer, build_store, policies
from db import SqlStore
from search_space.candidate import Candidate
from search_space.workload import Workload, parse_workload
from tuner.best import Final
from tuner.job import JobSpec, TaskSpec
from tuner.ports import DeviceInfo
from tuner.task import Task


@dataclass(frozen=True)
class Tuned:
    """The winners of a job's tasks, how many trials each took, and the job's wall time in seconds."""

    winners: tuple[Candidate, ...]
    trials: tuple[int, ...]
    wall_s: float


@dataclass
class Bench:
    """The measurer's first device, and how jobs are tuned on it."""

    measurer: ClosableMeasurer
    preset: str
    device: DeviceInfo = field(init=False)

    def __post_init__(self) -> None:
        self.device = self.measurer.devices()[0]

    def tune(self, workloads: Sequence[dict[str, object]], trials: int, seed: int) -> Tuned:
        """One job over `workloads`; RuntimeError when a task ended without a winner."""
        with tempfile.TemporaryDirectory() as folder:
            store = build_store(f"sqlite:///{Path(folder) / 'bench.db'}", migrate=True)
            try:
                return self._tune(store, workloads, trials, seed)
            finally:
                store.close()

    def _tune(self, store: SqlStore, workloads: Sequence[dict[str, object]], trials: int, seed: int) -> Tuned:
        begin = time.monotonic()
        tasks = tuple(TaskSpec(parse_workload(w)) for w in workloads)
        job, _ = store.create_job(JobSpec(tasks, max_trials=trials, seed=seed, preset=self.preset), None, time.time())
        runner = Runner(store, self.measurer, policies(), "benchmark", 60.0, threading.Event())
        while not runner.run_once():
            time.sleep(0.1)
        view = store.job(job.id)
        winners = []
        for task in view.tasks:
            if task.best is None:
                raise RuntimeError(f"{task.workload.to_json()}: no winner ({view.error}, {dict(view.failed_by)})")
            winners.append(task.best.candidate)
        return Tuned(tuple(winners), tuple(t.trials for t in view.tasks), time.monotonic() - begin)

    def final(self, workload: Workload, candidates: Sequence[Candidate]) -> Final:
        """The candidates and the vendor's kernel, interleaved, in a session of its own."""
        task = Task(workload, self.device.target)
        session = self.measurer.open(task, self.device, policies()[self.device.target.kind], seed=1)
        try:
            return session.final(candidates)
        finally:
            session.close()

    def roof_fraction(self, workload: Workload, latency_s: float) -> float | None:
        roofs = self.device.roofs
        return None if roofs is None else roofs.time_s(workload)[0] / latency_s
