"""One task of a claimed job: its search, its measuring session, and the commits between the two."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from api.runner.phases import Phases
from cost_model import storage as model_storage
from cost_model.features import FEATURE_SCHEMA
from cost_model.model import CostModel
from search_space.candidate import Candidate
from search_space.registry import all_sketches, generate_sketches
from tuner.best import BestConfig, Final
from tuner.job import StopReason
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.peers import compared_peers
from tuner.ports import (
    DeviceInfo,
    Lease,
    LeasedTask,
    Measured,
    MeasurePolicy,
    Measurer,
    MeasureSession,
    Progress,
    RunnerStore,
    Trial,
)
from tuner.presets import Preset
from tuner.promotion import promote, settled
from tuner.round import TaskSearch
from tuner.task import Task, TuningRecord

log = logging.getLogger("tilewright.runner")
peer_log = logging.getLogger("tilewright.peers")
RELATED_RECORDS = 4000


@dataclass(frozen=True)
class TaskContext:
    """What every task of a job shares."""

    store: RunnerStore
    measurer: Measurer
    lease: Lease
    preset: Preset
    policy: MeasurePolicy
    phases: Phases
    must_stop: Callable[[], bool]  # no further batch: the job is out of time, or must be left
    must_leave: Callable[[], bool]  # store nothing more: the job goes on elsewhere, or not at all
    learns: bool = True  # whether other jobs' records teach this one: not those of a scripted measurer


class Batch:
    """Trials submitted together; `open` are the ordinals without a committed result yet."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.ordinals = frozenset(t.ordinal for t in trials)
        self.open = set(self.ordinals)


class TaskRun:
    """Drives one task: batches are started and, in the same order, finished, so that the compiler can work on one
    while the device measures another. Its session holds the device while it measures; not thread-safe."""

    def __init__(self, context: TaskContext, leased: LeasedTask, task: Task, device: DeviceInfo) -> None:
        self.context, self.leased, self.task, self.device = context, leased, task, device
        self.stop_reason = leased.stop_reason
        self._unobserved: list[TuningRecord] = []
        self._batches: deque[Batch] = deque()
        self._session: MeasureSession | None = None
        self._outstanding: dict[int, Trial] = {}  # reserved under this lease, not committed yet
        context.store.bind(context.lease, leased.task_id, task)
        self.search = self._new_search()
        if context.lease.token > 1 and self.stop_reason is None:
            self._hold(context.store.reserve(context.lease, leased.task_id, []))  # what a runner before left open

    def _hold(self, trials: Sequence[Trial]) -> None:
        self._outstanding.update((t.id, t) for t in trials)
        self.search.reserved(trials)

    @property
    def unfinished(self) -> bool:
        """Trials were reserved and wait for their measurement: a runner or a device was lost in between."""
        return bool(self._left())

    def fits(self, device: DeviceInfo) -> bool:
        """Whether its numbers may stand beside those of the task's other trials."""
        return device.target == self.task.target and device.identity == self.device.identity

    def move_to(self, device: DeviceInfo) -> None:
        """Work on that device from now on; a session on another one is given back."""
        if device.device_id != self.device.device_id:
            self.close()
            self.device = device

    def _new_search(self) -> TaskSearch:
        c = self.context
        return TaskSearch(
            self.task,
            generate_sketches(self.task.workload, self.task.target),
            c.preset,
            c.lease.spec.seed + self.leased.index,
            roofs=self.device.roofs,
            records=c.store.records(c.lease, self.leased.task_id),
            related=self._related(),
            model=self._warm_model(),
        )

    def _related(self) -> list[TuningRecord]:
        """What other jobs measured by the same policy; a script's numbers teach nobody, and nobody teaches a script
        (one seed then proposes one list, whatever the database holds)."""
        c = self.context
        if not c.learns:
            return []
        policy = self.device.identity.policy
        records = c.store.related_records(self.task, RELATED_RECORDS)
        return [r for r in records if r.measurement.identity is None or r.measurement.identity.policy == policy]

    def _warm_model(self) -> CostModel | None:
        c = self.context
        stored = c.store.load_model(self.task.workload.op, self.task.target.kind) if c.learns else None
        if stored is None:
            return None
        model, warning = model_storage.load(stored[0], c.preset.model)
        if warning:
            c.store.report(c.lease, Progress(self.leased.index, "model", message=warning))
        return model

    @property
    def session(self) -> MeasureSession:
        if self._session is None:
            c = self.context
            with c.phases.spend("open"):
                self._session = c.measurer.open(self.task, self.device, c.policy, c.lease.spec.seed)
            if self._session.baseline is not None:
                name, measurement = self._session.baseline
                c.store.set_baseline(c.lease, self.leased.task_id, name, measurement)
        return self._session

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def in_flight(self) -> int:
        """Batches started and not finished."""
        return len(self._batches)

    def start_batch(self, size: int) -> int:
        """Submit what was reserved and then lost with its runner or device, else propose and reserve a batch first; how
        many trials it was."""
        trials = self._left() or self._propose(size)
        if not trials:
            return 0
        self.session.submit(trials, self.search.best_latency_s)
        self._batches.append(Batch(trials))
        return len(trials)

    def _left(self) -> list[Trial]:
        """Reserved, not committed, and in no batch."""
        flying = {ordinal for batch in self._batches for ordinal in batch.open}
        return [t for t in self._outstanding.values() if t.ordinal not in flying]

    def _propose(self, size: int) -> Sequence[Trial]:
        c = self.context
        with c.phases.spend("propose"):
            batch = self.search.next_batch(size)
        if not batch:
            return ()
        with c.phases.spend("store"):
            trials = c.store.reserve(c.lease, self.leased.task_id, batch)
        self._hold(trials)
        return trials

    def finish_batch(self) -> None:
        """Commit the oldest batch's results as they come, then learn from them. What comes of later batches meanwhile
        is committed, too, but told to the search in its turn: one seed gives one search, whatever ends first."""
        c, session, batch = self.context, self.session, self._batches[0]
        while batch.open and session.pending() and not c.must_stop():
            with c.phases.spend("measure"):
                done = session.results(0.5)
            for measured in done:
                self._take(measured)
        if c.must_stop():
            session.cancel()
            self._land_all()
        else:
            self._observe(self._batches.popleft())
        with c.phases.spend("fit"):
            refitted = self.search.refit()
        self._report(refitted)

    def _land_all(self) -> None:
        """No batch is in flight any more; what was committed of them is told to the search."""
        self._observe(None)
        self._batches.clear()

    def _observe(self, batch: Batch | None) -> None:
        """Told to the search in the order of the trials, not of their ends; None: all that there is."""
        due = [r for r in self._unobserved if batch is None or r.trial in batch.ordinals]
        self._unobserved = [r for r in self._unobserved if r not in due]
        for record in sorted(due, key=lambda r: (r.trial, r.attempt)):
            self.search.observe(record)

    def _take(self, measured: Measured) -> None:
        """Commit one result; a trial that was lost through nobody's fault is tried once more first."""
        c, trial = self.context, measured.trial
        if measured.measurement.outcome is Outcome.WORKER_LOST and trial.attempt == 0:
            with c.phases.spend("store"):
                again = c.store.retry(c.lease, trial)
            self._outstanding[again.id] = again
            self.session.submit([again], self.search.best_latency_s)
            return
        with c.phases.spend("store"):
            c.store.commit(c.lease, self.leased.task_id, measured)
        self._outstanding.pop(trial.id, None)
        for batch in self._batches:
            batch.open.discard(trial.ordinal)
        self._unobserved.append(self._record(trial, measured.measurement))

    def _record(self, trial: Trial, measurement: Measurement) -> TuningRecord:
        job, predicted = self.context.lease.job_id, trial.predicted_score
        return TuningRecord(self.task, trial.candidate, trial.ordinal, trial.attempt, measurement, job, predicted)

    def _report(self, refitted: bool) -> None:
        c = self.context
        with c.phases.spend("store"):
            if refitted and c.learns:
                workload, kind = self.task.workload, self.task.target.kind
                c.store.save_model(workload.op, kind, model_storage.save(self.search.model), FEATURE_SCHEMA)
            c.store.report(c.lease, Progress(self.leased.index, "search", c.phases.take()))

    def finish(self, reason: StopReason) -> None:
        """Measure the finalists again, promote the winner, and give the device back."""
        c = self.context
        if self.search.best_latency_s is not None:
            self._promote()
        if c.must_leave():
            return
        c.store.finish_task(c.lease, self.leased.task_id, reason)
        self.stop_reason = reason
        self._report(False)
        self.close()

    def _promote(self) -> None:
        c, session = self.context, self.session
        incumbent = c.store.incumbent(self.task, self.device.identity)
        served = None if incumbent is None else incumbent[0]
        with c.phases.spend("final"):
            final = session.final(self._finalists(served))
        if c.must_leave():
            return  # it was cut short
        best = promote(
            final,
            self.task,
            self.device.roofs,
            {name: sketch.complexity for name, sketch in all_sketches().items()},
            self.search.trials,
            np.random.default_rng(c.lease.spec.seed),
            config=c.preset.final,
            incumbent=served,
        )
        self._tell_peers(final, best)
        if best is None:
            log.warning("every finalist of task %d failed: %s", self.leased.index, dict(final.failures))
            return
        with c.phases.spend("store"):
            stood = any(x.candidate == served for x in final.contestants)
            # A final that was too noisy to say anything takes no schedule's place.
            beaten = served if stood and settled(best, c.preset.final) else None
            c.store.promote(c.lease, self.leased.task_id, best, session.artifact(best.artifact), beaten)

    def _tell_peers(self, final: Final, best: BestConfig | None) -> None:
        """Users' own kernels are compared with ours; what is served stays ours or the vendor's, since only those can be
        loaded elsewhere."""
        c = self.context
        for line in compared_peers(final, best, c.preset.final, np.random.default_rng(c.lease.spec.seed)):
            peer_log.info("task %d: %s", self.leased.index, line)
            c.store.report(c.lease, Progress(self.leased.index, "final", message=line))

    def _finalists(self, served: Candidate | None) -> list[Candidate]:
        """The fastest of this search, and what is served today where its sketch still lowers to the same program."""
        c = self.context
        finalists = list(self.search.finalists(c.preset.final.finalists))
        if served is not None and served not in finalists:
            sketch = all_sketches().get(served.sketch)
            if sketch is not None and sketch.version == served.version:
                finalists.append(served)
        return finalists

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def interrupt(self) -> None:
        """Kill what runs for the task, from any thread."""
        session = self._session
        if session is not None:
            session.cancel()

    def abandon(self) -> None:
        """Stop at once: kill what runs and give the device back."""
        self.interrupt()
        self._land_all()
        self.close()
