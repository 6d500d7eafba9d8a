"""The whole loop as a benchmark uses it: a job on a fresh database, and a second measurement of its winners."""

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api.runner.service import Runner
from api.wiring import ClosableMeasurer, build_store, policies
from db import SqlStore
from search_space.candidate import Candidate
from search_space.target import TargetQuery
from search_space.workload import Workload, parse_workload
from tuner.best import Final
from tuner.job import JobSpec, TaskSpec
from tuner.measurement import Measurement
from tuner.ports import DeviceInfo
from tuner.task import Task


@dataclass(frozen=True)
class Tuned:
    """The winners of a job's tasks, how many trials each took, the job's wall time in seconds, what was measured, and
    the seconds of each phase."""

    winners: tuple[Candidate, ...]
    trials: tuple[int, ...]
    wall_s: float
    measurements: tuple[Measurement, ...] = ()
    phase_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Bench:
    """The measurer's first device of a kind, and how jobs are tuned on it. RuntimeError where there is none."""

    measurer: ClosableMeasurer
    preset: str
    kind: str = "cpu"
    device: DeviceInfo = field(init=False)

    def __post_init__(self) -> None:
        found = [d for d in self.measurer.devices() if d.target.kind == self.kind]
        if not found or not found[0].healthy:
            raise RuntimeError(f"no {self.kind} device can be used{': ' + found[0].detail if found else ''}")
        self.device = found[0]

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
        spec = JobSpec(tasks, TargetQuery(self.kind), max_trials=trials, seed=seed, preset=self.preset)
        job, _ = store.create_job(spec, None, time.time())
        runner = Runner(store, self.measurer, policies(), "benchmark", 60.0, threading.Event())
        while not runner.run_once():
            time.sleep(0.1)
        view = store.job(job.id)
        winners = []
        for task in view.tasks:
            if task.best is None:
                raise RuntimeError(f"{task.workload.to_json()}: no winner ({view.error}, {dict(view.failed_by)})")
            winners.append(task.best.candidate)
        wall_s = time.monotonic() - begin
        counts = tuple(t.trials for t in view.tasks)
        return Tuned(tuple(winners), counts, wall_s, self._measured(store, tasks), dict(view.phase_seconds))

    def _measured(self, store: SqlStore, tasks: Sequence[TaskSpec]) -> tuple[Measurement, ...]:
        """Of a database that holds this job alone."""
        records = [
            record
            for op in {t.workload.op: t.workload for t in tasks}.values()
            for record in store.related_records(Task(op, self.device.target), 100_000)
        ]
        return tuple(r.measurement for r in records)

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
