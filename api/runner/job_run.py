"""One claimed job, from its leased tasks to its end."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from api.runner.board import Board
from api.runner.crew import Crew
from api.runner.lease_keeper import LeaseKeeper
from api.runner.phases import Phases
from api.runner.task_run import TaskContext, TaskRun
from search_space.errors import InvalidField
from search_space.registry import check_supported
from search_space.target import Target
from tuner.job import JobState, StopReason
from tuner.ports import DeviceInfo, Lease, MeasurePolicy, Measurer, MeasurerUnavailable, RunnerStore
from tuner.presets import preset
from tuner.task import Task

# When tasks end for different reasons, the job's is the first of these that any task had.
REASON_ORDER = (
    StopReason.TIME,
    StopReason.TRIALS,
    StopReason.NO_IMPROVEMENT,
    StopReason.NEAR_ROOFLINE,
    StopReason.SPACE_EXHAUSTED,
    StopReason.NO_VALID_CANDIDATE,
)


class Unschedulable(RuntimeError):
    """The devices that the job asks for cannot do one of its workloads; the message says why."""


class JobRun:
    """Works on one lease until the job has ended, users stop it, or the lease is lost."""

    def __init__(
        self,
        store: RunnerStore,
        measurer: Measurer,
        devices: Callable[[], Sequence[DeviceInfo]],
        policies: Mapping[str, MeasurePolicy],
        lease: Lease,
        keeper: LeaseKeeper,
        shutdown: threading.Event,
        learns: bool = True,
    ) -> None:
        self._store, self._measurer, self._lease, self._keeper = store, measurer, lease, keeper
        self._devices, self._policies, self._shutdown = devices, policies, shutdown
        self._preset, self._learns = preset(lease.spec.preset), learns
        self._started = time.monotonic()
        self._broken = threading.Event()  # one hand met a fault: the others stop
        self._runs: list[TaskRun] = []

    def run(self) -> None:
        """Raises LeaseLost when another runner took over, MeasurerUnavailable when no device is left for the job, and
        whatever broke; the devices are free in any case."""
        try:
            present = self._devices()
            for position in range(len(self._lease.tasks)):
                self._runs.append(self._task_run(position, present))
            board = Board(self._runs, self._lease.spec, self._preset, self._elapsed_s)
            Crew(board, self._devices, self._must_leave, self._broken).work()
            if not self._must_leave():
                self._finish()
        finally:
            for run in self._runs:
                run.abandon()

    def _must_leave(self) -> bool:
        """The job goes on elsewhere, or not at all: users stopped it, the lease is lost, or this runner ends."""
        return self._keeper.must_stop or self._shutdown.is_set()

    def _task_run(self, position: int, present: Sequence[DeviceInfo]) -> TaskRun:
        leased, spec = self._lease.tasks[position], self._lease.spec
        workload = spec.tasks[leased.index].workload
        device = self._device_for(leased.target, leased.index, present)
        context = TaskContext(
            store=self._store,
            measurer=self._measurer,
            lease=self._lease,
            preset=self._preset,
            policy=self._policies[device.target.kind],
            phases=Phases(),
            must_stop=lambda: self._must_leave() or self._broken.is_set() or self._out_of_time(),
            must_leave=lambda: self._must_leave() or self._broken.is_set(),
            learns=self._learns,
        )
        return TaskRun(context, leased, Task(workload, device.target), device)

    def _device_for(self, bound: Target | None, index: int, present: Sequence[DeviceInfo]) -> DeviceInfo:
        """A device like the one the task was bound to, else the first healthy one (GPUs first) that can do the
        workload. Raises Unschedulable where those that were asked for cannot do it, MeasurerUnavailable where none of
        them is there now."""
        spec = self._lease.spec
        refusals: list[str] = []
        for device in sorted(present, key=lambda d: d.target.kind != "cuda"):
            if not device.healthy or not spec.target.matches(device.target) or bound not in (None, device.target):
                continue
            try:
                check_supported(spec.tasks[index].workload, device.target)
            except InvalidField as fault:
                refusals.append(f"{device.device_id}: {fault}")
                continue
            return device
        if refusals:
            raise Unschedulable(f"no device can run task {index}: {'; '.join(refusals)}")
        raise MeasurerUnavailable(f"no device for task {index} is there now")

    def _elapsed_s(self) -> float:
        return self._lease.elapsed_s + time.monotonic() - self._started

    def _out_of_time(self) -> bool:
        limit = self._lease.spec.max_seconds
        return limit is not None and self._elapsed_s() >= limit

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
