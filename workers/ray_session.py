"""A session on one device: a thread of the driver moves candidates along, queued -> building -> built -> measured.

On a GPU the compiler works ahead of the device; on a CPU (`exclusive`) a chunk is built, then measured, both while the
session holds the device.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from search_space.candidate import Candidate
from tuner.best import Contestant, Final
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.peers import PEER_PREFIX
from tuner.ports import DeviceInfo, Measured, MeasurePolicy, MeasurerUnavailable, Trial
from tuner.task import Task
from workers.build import BuildResult
from workers.builder_pool import BuilderPool, BuildWindow
from workers.config import MeasurerConfig
from workers.device_probe import identity_under
from workers.final_bed import OpenTask
from workers.orders import Job, Orders, jobs, with_build
from workers.remote import Call, Cancelled, DeviceLost, RemoteDevice
from workers.shelf import Shelf
from workers.stay import DeviceStay

# How many candidates one stay on the device covers; between two stays another session may take it.
CHUNK = 16
# Measurements asked for ahead of the one that runs, so that the device does not wait for the next call to arrive.
AHEAD = 3
_WAIT_S = 0.5
_HELD_WAIT_S = 0.05  # how long a device is kept before it is asked whether another session wants it
_CANCEL_TIMEOUT_S = 8.0


class RaySession:
    """See tuner.ports.MeasureSession. `cancel` may come from any thread."""

    def __init__(
        self,
        device: DeviceInfo,
        remote: RemoteDevice,
        builders: BuilderPool,
        task: Task,
        policy: MeasurePolicy,
        seed: int,
        config: MeasurerConfig,
    ) -> None:
        self._info = device
        scenario = config.scenario
        self._identity = identity_under(device.identity, policy, scenario)
        vendor = scenario.baseline(task.workload.key).to_json() if scenario else {}
        peers = () if scenario else tuple(PEER_PREFIX + spec for spec in config.peers)
        opened = OpenTask(task.workload.to_json(), policy, seed, self._identity, vendor, peers)
        self._stay = DeviceStay(remote, opened)
        self._builds = BuildWindow(builders)
        self._shelf = Shelf(config.temp_parent)
        self._exclusive = device.target.kind == "cpu"
        self._orders = Orders(task, policy, scenario, self._shelf)
        self._queue: deque[Job] = deque()
        self._done: queue.SimpleQueue[tuple[int, Measured] | BaseException] = queue.SimpleQueue()
        self._pending = 0
        self._epoch = 0
        self._best_s: float | None = None  # seen by this session, for racing within a batch
        self.closed = False
        self._changed = threading.Condition()
        self._at_work = threading.Lock()  # held while this session uses builders or the device
        self._baseline: tuple[str, Measurement] | None = None
        self._spared = False  # a spare child is ready, as far as is known
        self._thread = threading.Thread(target=self._pump, name=f"measure-{self._stay.session[:8]}", daemon=True)
        self._thread.start()

    # --- the port ---

    @property
    def device(self) -> DeviceInfo:
        return self._info

    @property
    def baseline(self) -> tuple[str, Measurement] | None:
        return self._baseline

    def open(self) -> None:
        """Take the task up on the device and measure the vendor's kernel. Raises what `Measurer.open` raises."""
        with self._at_work:
            self._stay.take(self._ended(self._epoch))
            try:
                self._stay.warm_up(self._exclusive)
                self._baseline = self._stay.vendor(self._ended(self._epoch))
            finally:
                self._stay.leave()

    def submit(self, trials: Sequence[Trial], best_latency_s: float | None) -> None:
        with self._changed:
            for t in trials:
                self._queue.append(Job(t.candidate, t.ordinal, self._epoch, t, best_latency_s))
            self._pending += len(trials)
            self._changed.notify_all()

    def results(self, timeout_s: float) -> list[Measured]:
        """Raises MeasurerUnavailable, TaskNotOpened or ChildFailedToStart when measuring itself broke down."""
        deadline = time.monotonic() + timeout_s
        out: list[Measured] = []
        while self._pending:
            left = 0.0 if out else max(0.0, deadline - time.monotonic())
            try:
                item = self._done.get(block=left > 0.0, timeout=left or None)
            except queue.Empty:
                break
            if isinstance(item, BaseException):
                raise item
            epoch, measured = item
            with self._changed:
                if epoch == self._epoch:
                    self._pending -= 1
                    out.append(measured)
        return out

    def pending(self) -> int:
        return self._pending

    def final(self, candidates: Sequence[Candidate]) -> Final:
        """Raises MeasurerUnavailable when the measuring actor dies meanwhile."""
        epoch = self._epoch
        vendor = f"vendor:{self._baseline[0] if self._baseline else 'unknown'}"
        with self._at_work:
            self._stay.take(self._ended(epoch))
            try:
                failures = self._build_missing(candidates, epoch)
                entrants = [self._orders.entrant(c) for c in candidates if c.key not in failures]
                contest, errors, interval = self._stay.final(entrants, vendor)
            except DeviceLost as fault:
                raise MeasurerUnavailable(f"the measuring actor died during the final: {fault}") from fault
            finally:
                self._stay.leave()
        by_key = {c.key: c for c in candidates}
        contestants = tuple(
            Contestant(name, times, by_key.get(name), self._shelf.digest(name), errors.get(name))
            for name, times in contest.times.items()
        )
        return Final(contestants, self._identity, interval, {**failures, **contest.failures})

    def artifact(self, digest: str) -> bytes:
        return self._shelf.read(digest)

    def cancel(self) -> None:
        with self._changed:
            owner = self._owner(self._epoch)
            self._epoch += 1
            self._queue.clear()
            self._pending = 0
        deadline = time.monotonic() + _CANCEL_TIMEOUT_S
        while time.monotonic() < deadline:
            self._builds.abort(owner)
            if not self._stay.cancel(_CANCEL_TIMEOUT_S):
                return
            if self._at_work.acquire(timeout=0.2):
                self._at_work.release()
                return
        self._stay.kill()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.cancel()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CANCEL_TIMEOUT_S)
        self._builds.drop()
        self._shelf.close()

    # --- the background thread ---

    def _owner(self, epoch: int) -> str:
        return f"{self._stay.session}:{epoch}"

    def _ended(self, epoch: int) -> Callable[[], bool]:
        return lambda: self.closed or self._epoch != epoch

    def _pump(self) -> None:
        while not self.closed:
            with self._changed:
                if not self._queue and not self._builds.in_flight:
                    self._changed.wait(_WAIT_S)
                    continue
            try:
                with self._at_work:
                    self._exclusive_stay() if self._exclusive else self._overlapped_stay()
            except Cancelled:
                continue
            except Exception as fault:  # noqa: BLE001  whatever broke measuring is the caller's to see
                self._done.put(fault)
                with self._changed:
                    self._changed.wait(_WAIT_S)  # what broke measuring would break it again at once

    def _exclusive_stay(self) -> None:
        """Build a chunk, then measure it: on a CPU the two would disturb each other."""
        epoch = self._epoch
        self._stay.take(self._ended(epoch))
        try:
            warm = threading.Thread(target=self._stay.warm_up, args=(True,))
            warm.start()
            chunk = self._take(CHUNK)
            built = dict(self._build(chunk, epoch))
            warm.join()
            for job in chunk:
                self._finish(job, built[job])
        finally:
            self._stay.leave()

    def _overlapped_stay(self) -> None:
        """Measure what is built while the builders work ahead. The device is kept while more is to come, unless another
        session wants it and nothing of ours is ready."""
        flying: deque[tuple[Job, BuildResult, Call]] = deque()
        held, started = False, 0
        try:
            while True:
                for job in self._take(self._builds.room):
                    self._builds.submit(job, self._orders.request(job, self._owner(job.epoch)))
                room = started < CHUNK and len(flying) < AHEAD
                first = flying[0][2] if flying else None
                ready = self._builds.collect(_HELD_WAIT_S if held else _WAIT_S, first) if room else []
                for job, built in jobs(ready):
                    if not self._worth_measuring(job, built):
                        continue
                    if not held:
                        self._take_device()
                        held = True
                    flying.append((job, built, self._start(job, built)))
                    started += 1
                if flying and (not ready or not room):
                    self._land(*flying.popleft())
                elif not flying and not ready and self._leaves(started):
                    return
        finally:
            if held:
                self._stay.leave()

    def _take_device(self) -> None:
        self._stay.take(self._ended(self._epoch))
        if not self._spared:
            self._stay.warm_up(False)
            self._spared = True

    def _leaves(self, started: int) -> bool:
        """Nothing of ours is ready now: whether to give the device back."""
        return started == 0 or started >= CHUNK or self._builds.in_flight == 0 or self.closed or self._stay.wanted()

    def _land(self, job: Job, built: BuildResult, call: Call) -> None:
        measurement = self._stay.measured(call, self._ended(job.epoch))
        self._spared &= measurement.outcome in (Outcome.OK, Outcome.WRONG_ANSWER)  # else its child may be gone
        self._hand_out(job, built, measurement)

    def _take(self, most: int) -> list[Job]:
        with self._changed:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _build(self, wanted: Sequence[Job], epoch: int) -> Iterator[tuple[Job, BuildResult]]:
        """All of them, as they end, in the meantime staying on the device."""
        waiting = deque(wanted)
        while waiting or self._builds.in_flight:
            while waiting and self._builds.room > 0:
                job = waiting.popleft()
                self._builds.submit(job, self._orders.request(job, self._owner(job.epoch)))
            yield from jobs(self._builds.collect(_WAIT_S))
            self._stay.keep(self._ended(epoch))

    def _build_missing(self, candidates: Sequence[Candidate], epoch: int) -> dict[str, str]:
        """Build what this session has no artifact of: candidate key -> error of those that failed."""
        failures: dict[str, str] = {}
        missing = [self._orders.of(c, epoch) for c in candidates if self._shelf.digest(c.key) is None]
        for job, built in self._build(missing, epoch):
            if built.ok:
                self._shelf.put(job.candidate, built)
            else:
                failures[job.candidate.key] = f"{built.outcome}: {built.error}"
        return failures

    def _finish(self, job: Job, built: BuildResult) -> None:
        """Measure what was built and hand the result out."""
        if self._worth_measuring(job, built):
            self._hand_out(job, built, self._stay.measured(self._start(job, built), self._ended(job.epoch)))

    def _worth_measuring(self, job: Job, built: BuildResult) -> bool:
        """False for what nobody wants any more, and for what was not built: that is handed out as it is."""
        if job.trial is None or job.epoch != self._epoch:
            return False
        if not built.ok:
            failed = Measurement(built.outcome, error=built.error, identity=self._identity, build_secs=built.build_secs)
            self._done.put((job.epoch, Measured(job.trial, failed)))
        return built.ok

    def _start(self, job: Job, built: BuildResult) -> Call:
        assert job.trial is not None
        self._shelf.put(job.candidate, built)
        self._orders.ordinals[job.candidate.key] = job.trial.ordinal
        best = min((s for s in (job.best_latency_s, self._best_s) if s is not None), default=None)
        return self._stay.start(self._orders.entrant(job.candidate), best)

    def _hand_out(self, job: Job, built: BuildResult, measurement: Measurement) -> None:
        assert job.trial is not None
        if measurement.outcome is Outcome.OK and measurement.latency_s is not None:
            self._best_s = min(measurement.latency_s, self._best_s or measurement.latency_s)
        self._done.put((job.epoch, Measured(job.trial, with_build(measurement, built), built.digest)))
