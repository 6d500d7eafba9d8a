"""The hands of a job: one thread for each device that may work on it.

Devices that join are put to work; what a device that leaves, dies or is set aside had in hand goes to the others.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from api.runner.board import Board, Work
from api.runner.task_run import TaskRun
from tuner.ports import DeviceInfo, LeaseLost, MeasurerUnavailable

log = logging.getLogger("tilewright.runner")

# Measuring sessions that stay open on a device at a time, each with a thread and the artifacts it built: opening one
# costs its inputs and reference.
MAX_OPEN_SESSIONS = 8
# Batches that a device has in flight before the oldest is finished. On a CPU building and measuring exclude each other.
# On a GPU builders must never wait for the device nor the device for them: two batches are built while one is measured,
# at the price of a search that learns two batches late. A fixed number, so that one seed gives one search.
BATCHES_IN_FLIGHT = {"cpu": 1, "cuda": 3}
REST_S = 5.0  # for a device that broke down, before it is tried again


class Crew:
    """`devices` tells those of this moment; `leave` whether the job must be left at once."""

    def __init__(
        self,
        board: Board,
        devices: Callable[[], Sequence[DeviceInfo]],
        leave: Callable[[], bool],
        broken: threading.Event,
    ) -> None:
        self._board, self._devices, self._leave, self._broken = board, devices, leave, broken
        self._hands: dict[str, threading.Thread] = {}
        self._resting: dict[str, float] = {}  # device -> when it may be tried again
        self._fault: BaseException | None = None
        self._last: MeasurerUnavailable | None = None

    def work(self) -> None:
        """Until no task is open or the job must be left. Raises the first fault of any hand, and MeasurerUnavailable
        when no device is left to work on what is still open."""
        try:
            while self._board.open and not self._must_stop():
                self._hire()
                if not any(h.is_alive() for h in self._hands.values()) and self._board.open and not self._must_stop():
                    raise self._last or MeasurerUnavailable("no device that can do this job is there now")
                self._board.wait()
        except BaseException:
            self._broken.set()
            raise
        finally:
            if self._must_stop():
                self._board.interrupt()
            for hand in self._hands.values():
                hand.join()
        if self._fault is not None:
            raise self._fault

    def _must_stop(self) -> bool:
        return self._broken.is_set() or self._leave()

    def _hire(self) -> None:
        now = time.monotonic()
        for device in self._devices():
            name = device.device_id
            hand = self._hands.get(name)
            if (hand is not None and hand.is_alive()) or self._resting.get(name, now) > now:
                continue
            if device.healthy and self._board.has_work_for(device):
                self._hands[name] = threading.Thread(target=self._hand, args=(device,), name=f"hand-{name}")
                self._hands[name].start()

    def _fit(self, device: DeviceInfo) -> bool:
        return any(d.device_id == device.device_id and d.healthy for d in self._devices())

    def _hand(self, device: DeviceInfo) -> None:
        flying: deque[TaskRun] = deque()  # one entry a batch in flight, oldest first
        try:
            self._serve(device, flying)
        except MeasurerUnavailable as fault:
            log.warning("device %s: %s", device.device_id, fault)
            self._last = fault
            self._resting[device.device_id] = time.monotonic() + REST_S
        except BaseException as fault:  # noqa: BLE001  raised again by the thread that waits
            if self._must_stop() and not isinstance(fault, LeaseLost):
                log.info("device %s: cut short (%s)", device.device_id, fault)
                return
            self._fault = self._fault or fault
            self._broken.set()
        finally:
            for run in dict.fromkeys(flying):  # what the device had in hand goes to the others
                run.abandon()
                self._board.let_go(run)

    def _serve(self, device: DeviceInfo, flying: deque[TaskRun]) -> None:
        opened: list[TaskRun] = []  # on this device, least recently used first
        while not self._must_stop() and self._fit(device) and self._board.has_work_for(device):
            work = self._board.take(device)
            if work is None:
                self._land(flying) if flying else self._board.wait()
                continue
            opened = self._make_room(opened, work.run, device)
            self._step(work, device, flying)
            while len(flying) >= BATCHES_IN_FLIGHT[device.target.kind]:
                self._land(flying)

    def _land(self, flying: deque[TaskRun]) -> None:
        """Finish the oldest batch, unless it was given up with others of its task."""
        if flying[0].in_flight:
            flying[0].finish_batch()
        self._board.let_go(flying.popleft())

    def _step(self, work: Work, device: DeviceInfo, flying: deque[TaskRun]) -> None:
        taken, run = None, work.run
        try:
            while work.reason is not None and run.in_flight and not self._must_stop():
                self._land(flying)
            run.move_to(device)
            if work.reason is None:
                taken = run.start_batch(work.size)
                flying.extend([run] * (taken > 0))
            elif (reason := self._board.reason(run)) is not None and not self._must_stop():
                run.finish(reason)
        except MeasurerUnavailable:
            run.abandon()
            raise
        finally:
            self._board.put_back(work, taken)

    @staticmethod
    def _make_room(opened: list[TaskRun], run: TaskRun, device: DeviceInfo) -> list[TaskRun]:
        """Close what was used longest ago; a task that another device took over is no longer ours to close."""
        ours = [r for r in opened if r is not run and r.is_open and r.device.device_id == device.device_id] + [run]
        idle = [r for r in ours if r is not run and not r.in_flight]
        for oldest in idle[: max(0, len(ours) - MAX_OPEN_SESSIONS)]:
            oldest.close()
            ours.remove(oldest)
        return ours
