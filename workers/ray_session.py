"""A session on one device: a thread of the driver moves candidates along, queued -> building -> built -> measured.

On a GPU the compiler works ahead of the device; on a CPU (`exclusive`) a chunk is built, then measured, both while the
session holds the device.
"""

import dataclasses
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from search_space.candidate import Candidate
from tuner.best import Contestant, Final
from tuner.idle import BUILT_AT
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Measured, MeasurePolicy, MeasurerUnavailable, Trial
from tuner.task import Task
from workers.build import BuildResult
from workers.builder import BuildRequest
from workers.builder_pool import BuilderPool, BuildWindow
from workers.config import MeasurerConfig
from workers.device_probe import identity_under
from workers.final_bed import Entrant, OpenTask
from workers.measure_job import MeasureJob, jobs_of
from workers.remote import Cancelled, DeviceLost, RemoteDevice
from workers.shelf import Shelf
from workers.stay import DeviceStay

# How many candidates one stay on the device covers; between two stays another session may take it.
CHUNK = 16
_WAIT_S = 0.5
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
        self._task = task
        self._policy = policy
        self._scenario = scenario = config.scenario
        self._identity = identity_under(device.identity, policy, scenario)
        vendor = scenario.baseline(task.workload.key).to_json() if scenario else {}
        self._stay = DeviceStay(remote, OpenTask(task.workload.to_json(), policy, seed, self._identity, vendor))
        self._builds = BuildWindow(builders)
        self._shelf = Shelf(config.temp_parent)
        self._exclusive = device.target.kind == "cpu"
        self._ordinals: dict[str, int] = {}  # candidate key -> its trial's ordinal
        self._queue: deque[MeasureJob] = deque()
        self._done: queue.SimpleQueue[tuple[int, Measured] | BaseException] = queue.SimpleQueue()
        self._pending = 0
        self._epoch = 0
        self._best_s: float | None = None  # seen by this session, for racing within a batch
        self.closed = False
        self._changed = threading.Condition()
        self._at_work = threading.Lock()  # held while this session uses builders or the device
        self._baseline: tuple[str, Measurement] | None = None
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
                self._queue.append(MeasureJob(t.candidate, t.ordinal, self._epoch, t, best_latency_s))
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
                entrants = [self._entrant(c, self._ordinals.get(c.key)) for c in candidates if c.key not in failures]
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
            jobs = self._take(CHUNK)
            built = dict(self._build(jobs, epoch))
            warm.join()
            for job in jobs:
                self._finish(job, built[job])
        finally:
            self._stay.leave()

    def _overlapped_stay(self) -> None:
        """Measure what is built while the builders work ahead; leave the device when nothing is ready."""
        held = False
        try:
            for _ in range(CHUNK):
                for job in self._take(self._builds.room):
                    self._builds.submit(job, self._request(job))
                ready = self._builds.collect(0.0 if held else _WAIT_S)
                if not ready:
                    break
                if not held:
                    self._stay.take(self._ended(self._epoch))
                    self._stay.warm_up(False)
                    held = True
                for job, result in jobs_of(ready):
                    self._finish(job, result)
        finally:
            if held:
                self._stay.leave()

    def _take(self, most: int) -> list[MeasureJob]:
        with self._changed:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _build(self, jobs: Sequence[MeasureJob], epoch: int) -> Iterator[tuple[MeasureJob, BuildResult]]:
        """All of them, as they end, in the meantime staying on the device."""
        waiting = deque(jobs)
        while waiting or self._builds.in_flight:
            while waiting and self._builds.room > 0:
                job = waiting.popleft()
                self._builds.submit(job, self._request(job))
            yield from jobs_of(self._builds.collect(_WAIT_S))
            self._stay.keep(self._ended(epoch))

    def _build_missing(self, candidates: Sequence[Candidate], epoch: int) -> dict[str, str]:
        """Build what this session has no artifact of: candidate key -> error of those that failed."""
        failures: dict[str, str] = {}
        missing = [
            MeasureJob(c, self._ordinals.get(c.key), epoch) for c in candidates if self._shelf.digest(c.key) is None
        ]
        for job, built in self._build(missing, epoch):
            if built.ok:
                self._shelf.put(job.candidate, built)
            else:
                failures[job.candidate.key] = f"{built.outcome}: {built.error}"
        return failures

    def _finish(self, job: MeasureJob, built: BuildResult) -> None:
        """Measure what was built and hand the result out."""
        trial = job.trial
        if trial is None or job.epoch != self._epoch:
            return
        if not built.ok:
            failed = Measurement(built.outcome, error=built.error, identity=self._identity, build_secs=built.build_secs)
            self._done.put((job.epoch, Measured(trial, failed)))
            return
        digest = self._shelf.put(job.candidate, built)
        self._ordinals[job.candidate.key] = trial.ordinal
        best = min((s for s in (job.best_latency_s, self._best_s) if s is not None), default=None)
        entrant = self._entrant(job.candidate, trial.ordinal)
        measurement = self._stay.measure(entrant, best, self._ended(job.epoch))
        if measurement.outcome is Outcome.OK and measurement.latency_s is not None:
            self._best_s = min(measurement.latency_s, best or measurement.latency_s)
        details = {**measurement.observation.details, BUILT_AT: built.ended_at}
        observation = dataclasses.replace(measurement.observation, details=details)
        measurement = dataclasses.replace(measurement, build_secs=built.build_secs, observation=observation)
        self._done.put((job.epoch, Measured(trial, measurement, digest)))

    def _request(self, job: MeasureJob) -> BuildRequest:
        return BuildRequest(
            self._task.workload.to_json(),
            self._task.target.to_json(),
            job.candidate.to_json(),
            self._policy.build_timeout_s,
            self._owner(job.epoch),
            self._entry(job.candidate, job.ordinal),
        )

    def _entrant(self, candidate: Candidate, ordinal: int | None) -> Entrant:
        return Entrant(candidate.key, self._shelf.artifact_of(candidate), self._entry(candidate, ordinal))

    def _entry(self, candidate: Candidate, ordinal: int | None) -> dict[str, object] | None:
        if self._scenario is None:
            return None
        return self._scenario.entry(self._task.workload.key, candidate, ordinal).to_json()
