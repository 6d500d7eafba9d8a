"""The tasks of a claimed job, and who works on which: each open task is in at most one pair of hands."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from api.runner.task_run import TaskRun
from tuner.job import JobSpec, StopReason
from tuner.ports import DeviceInfo
from tuner.presets import Preset
from tuner.task_scheduler import next_task

_WAIT_S = 0.5


@dataclass(frozen=True)
class Work:
    """One step on one task: a batch of `size`, or, where `reason` is set, its end."""

    run: TaskRun
    size: int
    reason: StopReason | None


class Board:
    """Thread-safe. `elapsed_s`: seconds that the job has worked, for its time limit."""

    def __init__(self, runs: Sequence[TaskRun], spec: JobSpec, preset: Preset, elapsed_s: Callable[[], float]) -> None:
        self._runs, self._spec, self._preset, self._elapsed_s = runs, spec, preset, elapsed_s
        self._rng = np.random.default_rng(spec.seed)
        self._changed = threading.Condition()
        self._in_hand: dict[int, str] = {}  # place of a task that somebody works on -> the device
        self._trials_left = True

    @property
    def open(self) -> bool:
        return any(r.stop_reason is None for r in self._runs)

    @property
    def out_of_time(self) -> bool:
        limit = self._spec.max_seconds
        return limit is not None and self._elapsed_s() >= limit

    def has_work_for(self, device: DeviceInfo) -> bool:
        return any(r.stop_reason is None and r.fits(device) for r in self._runs)

    def take(self, device: DeviceInfo) -> Work | None:
        """The next step that the device may do, its own tasks before those that another device has opened; None when
        there is none now. `put_back` ends it."""
        with self._changed:
            name = device.device_id
            free = [r for r in self._runs if r.stop_reason is None and r.fits(device)]
            free = [r for r in free if self._in_hand.get(r.leased.index, name) == name]
            mine = [r for r in free if not r.is_open or r.device.device_id == name] or self._idle_elsewhere(free)
            work = self._due(mine) or self._batch(mine)
            if work is not None:
                self._in_hand[work.run.leased.index] = name
            return work

    def _idle_elsewhere(self, runs: Sequence[TaskRun]) -> list[TaskRun]:
        """Those that another device has opened beside one that it works on: moving a session costs its inputs and
        reference, so a device keeps its last task."""
        opened = Counter(r.device.device_id for r in self._runs if r.is_open and r.stop_reason is None)
        return [r for r in runs if opened[r.device.device_id] > 1]

    def _due(self, runs: Sequence[TaskRun]) -> Work | None:
        for run in runs:
            if run.unfinished and not self.out_of_time:
                continue  # what was reserved for it is measured first
            reason = self.reason(run)
            if reason is not None:
                return Work(run, 0, reason)
        return None

    def reason(self, run: TaskRun) -> StopReason | None:
        """Why to propose nothing more. What is in flight counts: ask again when it has landed."""
        return run.search.stop_reason(self._elapsed_s(), self._spec.max_seconds, int(self._trials_left))

    def _batch(self, runs: Sequence[TaskRun]) -> Work | None:
        progress = [r.search.progress(r.leased.index, r.leased.weight) for r in runs]
        chosen = next_task(progress, self._preset.scheduler, self._rng)
        run = next((r for r in runs if r.leased.index == chosen), None)
        return None if run is None else Work(run, self._batch_size(), None)

    def _batch_size(self) -> int:
        """The preset's, or less where it would spend the job's trials before every task had some."""
        return max(1, min(self._preset.batch_size, self._spec.max_trials // len(self._runs)))

    def put_back(self, work: Work, taken: int | None = None) -> None:
        """The step has ended; `taken`: the trials of its batch, None where it was cut short."""
        with self._changed:
            if taken == 0 and work.reason is None:
                self._trials_left = self._trials_left and self._space_ended(work.run)
        self.let_go(work.run)

    def let_go(self, run: TaskRun) -> None:
        """Others may have the task, unless batches of it are in flight still."""
        with self._changed:
            if not run.in_flight:
                self._in_hand.pop(run.leased.index, None)
            self._changed.notify_all()

    def _space_ended(self, run: TaskRun) -> bool:
        """Whether nothing was taken because the space has no more, rather than the budget."""
        return run.search.stop_reason(self._elapsed_s(), self._spec.max_seconds, 1) is StopReason.SPACE_EXHAUSTED

    def interrupt(self) -> None:
        """Kill what runs for any of the tasks."""
        for run in self._runs:
            run.interrupt()

    def wait(self) -> None:
        """Until something was put back, or a moment has passed."""
        with self._changed:
            self._changed.wait(_WAIT_S)
