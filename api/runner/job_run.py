"""One claimed job, from its leased tasks to its end."""

import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np

from api.runner.lease_keeper import LeaseKeeper
from api.runner.phases import Phases
from api.runner.task_run import TaskContext, TaskRun
from search_space.errors import InvalidField
from search_space.registry import check_supported
from search_space.target import Target
from tuner.job import JobState, StopReason
from tuner.ports import DeviceInfo, Lease, MeasurePolicy, Measurer, RunnerStore
from tuner.presets import preset
from tuner.task import Task
from tuner.task_scheduler import next_task

# When tasks end for different reasons, the job's is the first of these that any task had.
REASON_ORDER = (
    StopReason.TIME,
    StopReason.TRIALS,
    StopReason.NO_IMPROVEMENT,
    StopReason.NEAR_ROOFLINE,
    StopReason.SPACE_EXHAUSTED,
    StopReason.NO_VALID_CANDIDATE,
)

# Batches of a job that are started before the oldest is finished. On a CPU building and measuring exclude each other.
# On a GPU builders must never wait for the device nor the device for them: two batches are built while one is measured,
# at the price of a search that learns two batches late. A fixed number, so that one seed gives one search.
BATCHES_IN_FLIGHT = {"cpu": 1, "cuda": 3}

# Measuring sessions of a job that stay open at a time, each with a thread and the artifacts it built.
MAX_OPEN_SESSIONS = 8


class Unschedulable(RuntimeError):
    """No device here can run the job; the message says which are known."""


class JobRun:
    """Works on one lease until the job has ended, users stop it, or the lease is lost."""

    def __init__(
        self,
        store: RunnerStore,
        measurer: Measurer,
        devices: Sequence[DeviceInfo],
        policies: Mapping[str, MeasurePolicy],
        lease: Lease,
        keeper: LeaseKeeper,
        shutdown: threading.Event,
        learns: bool = True,
    ) -> None:
        self._store, self._measurer, self._lease, self._keeper = store, measurer, lease, keeper
        self._devices, self._policies, self._shutdown = devices, policies, shutdown
        self._rng = np.random.default_rng(lease.spec.seed)
        self._preset, self._learns = preset(lease.spec.preset), learns
        self._started = time.monotonic()
        self._trials_left = True
        self._runs: list[TaskRun] = []
        self._open_order: list[TaskRun] = []  # least recently used first
        self._flying: deque[TaskRun] = deque()  # one entry a batch in flight, oldest first

    def run(self) -> None:
        """Raises LeaseLost when another runner took over, and whatever broke; the device is free in any case."""
        try:
            self._runs = [self._task_run(i) for i in range(len(self._lease.tasks))]
            self._search()
            if not self._must_leave():
                self._finish()
        finally:
            for run in self._runs:
                run.abandon()

    def _must_leave(self) -> bool:
        """The job goes on elsewhere, or not at all: users stopped it, the lease is lost, or this runner ends."""
        return self._keeper.must_stop or self._shutdown.is_set()

    def _task_run(self, position: int) -> TaskRun:
        leased, spec = self._lease.tasks[position], self._lease.spec
        workload = spec.tasks[leased.index].workload
        device = self._device_for(leased.target, leased.index)
        context = TaskContext(
            store=self._store,
            measurer=self._measurer,
            lease=self._lease,
            preset=self._preset,
            policy=self._policies[device.target.kind],
            phases=Phases(),
            must_stop=lambda: self._must_leave() or self._out_of_time(),
            learns=self._learns,
        )
        return TaskRun(context, leased, Task(workload, device.target), device)

    def _device_for(self, bound: Target | None, index: int) -> DeviceInfo:
        """A healthy device (GPUs first) that can do the workload, of the target that the task was bound to. Jobs and
        tasks spread over equal devices, so that several runners do not queue at the first."""
        spec = self._lease.spec
        workload = spec.tasks[index].workload
        reasons: list[str] = []
        turn = zlib.crc32(f"{self._lease.job_id}:{index}".encode()) % max(1, len(self._devices))
        turned = [*self._devices[turn:], *self._devices[:turn]]
        for device in sorted(turned, key=lambda d: d.target.kind != "cuda"):
            if not device.healthy or not spec.target.matches(device.target):
                reasons.append(f"{device.device_id}: {device.detail or 'another target'}")
                continue
            if bound is not None and device.target != bound:
                reasons.append(f"{device.device_id}: the task began on another device")
                continue
            try:
                check_supported(workload, device.target)
            except InvalidField as fault:
                reasons.append(f"{device.device_id}: {fault}")
                continue
            return device
        raise Unschedulable(f"no device can run task {index}: {'; '.join(reasons) or 'none is known'}")

    def _elapsed_s(self) -> float:
        return self._lease.elapsed_s + time.monotonic() - self._started

    def _out_of_time(self) -> bool:
        limit = self._lease.spec.max_seconds
        return limit is not None and self._elapsed_s() >= limit

    def _search(self) -> None:
        while not self._must_leave():
            for run in self._runs:
                if run.stop_reason is None and not self._must_leave():
                    self._stop_where_due(run)
            open_runs = [r for r in self._runs if r.stop_reason is None]
            if not open_runs or self._must_leave():
                return
            progress = [r.search.progress(r.leased.index, r.leased.weight) for r in open_runs]
            chosen = next_task(progress, self._preset.scheduler, self._rng)
            run = next(r for r in open_runs if r.leased.index == chosen)
            self._make_room(run)
            taken = run.start_batch(self._batch_size())
            self._trials_left = taken > 0 or self._space_ended(run)
            self._flying += [run] * (taken > 0)
            while len(self._flying) >= BATCHES_IN_FLIGHT[run.task.target.kind]:
                self._flying.popleft().finish_batch()

    def _land(self, run: TaskRun) -> None:
        """Finish the batches of `run`, and those started before them."""
        while run.in_flight and not self._must_leave():
            self._flying.popleft().finish_batch()

    def _batch_size(self) -> int:
        """The preset's, or less where it would spend the job's trials before every task had some."""
        return max(1, min(self._preset.batch_size, self._lease.spec.max_trials // len(self._runs)))

    def _space_ended(self, run: TaskRun) -> bool:
        """Whether nothing was taken because the space has no more, rather than the budget."""
        return run.search.stop_reason(self._elapsed_s(), self._lease.spec.max_seconds, 1) is StopReason.SPACE_EXHAUSTED

    def _stop_where_due(self, run: TaskRun) -> None:
        """What is in flight counts: the reason is asked for again when it has landed."""
        if self._reason(run) is not None:
            self._land(run)
        if not self._must_leave() and (reason := self._reason(run)) is not None:
            self._make_room(run)
            run.finish(reason)

    def _reason(self, run: TaskRun) -> StopReason | None:
        return run.search.stop_reason(self._elapsed_s(), self._lease.spec.max_seconds, int(self._trials_left))

    def _make_room(self, run: TaskRun) -> None:
        """Sessions stay open between batches, since opening one costs its inputs and reference; only so many do."""
        self._open_order = [r for r in self._open_order if r is not run and r.is_open] + [run]
        idle = [r for r in self._open_order if r is not run and not r.in_flight]
        for oldest in idle[: max(0, len(self._open_order) - MAX_OPEN_SESSIONS)]:
            oldest.close()
            self._open_order.remove(oldest)

    def _finish(self) -> None:
        reasons = {r.stop_reason for r in self._runs}
        reason = next((r for r in REASON_ORDER if r in reasons), None)
        if reasons == {StopReason.NO_VALID_CANDIDATE}:
            self._store.finish_job(self._lease, JobState.FAILED, reason, self._first_error())
        else:
            self._store.finish_job(self._lease, JobState.COMPLETED, reason, None)

    def _first_error(self) -> str:
        """The first underlying error and the counts by outcome (cases O10)."""
        records = [r for run in self._runs for r in run.search.state.records]
        counts = Counter(r.measurement.outcome for r in records)
        first = next((r.measurement.error for r in records if r.measurement.error), "no error was recorded")
        listed = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        return f"no_valid_candidate: {first} ({listed})"
