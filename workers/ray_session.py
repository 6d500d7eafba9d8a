"""A session on one device: builds and measures what is submitted, in the background.

A thread of the driver moves candidates along: queued -> building -> built -> measured. On a GPU the compiler works
ahead of the device; on a CPU (`exclusive`) a chunk is built, then measured, both while this session holds the device.
"""

import dataclasses
import queue
import shutil
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_space.candidate import Candidate
from tuner.best import Contestant, Final
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Measured, MeasurePolicy, Trial
from tuner.task import Task
from workers import host_devices
from workers.build import BuildResult
from workers.builder import BuildRequest
from workers.device import Entrant, OpenTask
from workers.remote import BuilderPool, BuildWindow, Cancelled, DeviceLost, RemoteDevice
from workers.script import Scenario

# How many candidates one stay on the device covers; between two stays another session may take it.
CHUNK = 16
_WAIT_S = 0.5
_CANCEL_TIMEOUT_S = 8.0


@dataclass(frozen=True)
class _Job:
    trial: Trial
    best_latency_s: float | None
    epoch: int  # of the session when it was submitted; a cancel ends an epoch


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
        scenario: Scenario | None,
    ) -> None:
        self._info = device
        self._remote = remote
        self._builds = BuildWindow(builders)
        self._task = task
        self._policy = policy
        self._scenario = scenario
        self._identity = identity = host_devices.identity_under(device.identity, policy, scenario)
        vendor = scenario.baseline(task.workload.key).to_json() if scenario else {}
        self._open_task = OpenTask(task.workload.to_json(), policy, seed, identity, vendor)
        self._exclusive = device.target.kind == "cpu"
        self._id = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-session-"))
        self._digests: dict[str, str] = {}  # candidate key -> its artifact
        self._ordinals: dict[str, int] = {}  # candidate key -> its trial's ordinal
        self._queue: deque[_Job] = deque()
        self._done: queue.SimpleQueue[tuple[int, Measured] | BaseException] = queue.SimpleQueue()
        self._pending = 0
        self._epoch = 0
        self._closed = False
        self._changed = threading.Condition()
        self._at_work = threading.Lock()  # held while this session uses builders or the device
        self._baseline: tuple[str, Measurement] | None = None
        self._thread = threading.Thread(target=self._pump, name=f"measure-{self._id[:8]}", daemon=True)
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
            self._stay()
            try:
                self._remote.work("warm_up", self._exclusive)
                self._baseline = self._remote.work("baseline", self._id, self._open_task)
            finally:
                self._leave()

    def submit(self, trials: Sequence[Trial], best_latency_s: float | None) -> None:
        with self._changed:
            self._queue.extend(_Job(t, best_latency_s, self._epoch) for t in trials)
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

    @property
    def closed(self) -> bool:
        return self._closed

    def pending(self) -> int:
        return self._pending

    def final(self, candidates: Sequence[Candidate]) -> Final:
        with self._at_work:
            self._stay()
            try:
                unbuilt = self._build_missing(candidates)
                entrants = [self._entrant(c, self._ordinals.get(c.key)) for c in candidates if c.key not in unbuilt]
                vendor = f"vendor:{self._baseline[0] if self._baseline else 'unknown'}"
                answer = self._remote.work("final", self._id, self._open_task, entrants, vendor)
            finally:
                self._leave()
        contest, errors, interval = answer
        by_key = {c.key: c for c in candidates}
        contestants = tuple(
            Contestant(name, times, by_key.get(name), self._digests.get(name), errors.get(name))
            for name, times in contest.times.items()
        )
        return Final(contestants, self._identity, interval, {**unbuilt, **contest.failures})

    def artifact(self, digest: str) -> bytes:
        path = self._folder / digest
        if len(digest) != 64 or not digest.isalnum() or not path.is_file():
            raise KeyError(digest)
        return path.read_bytes()

    def cancel(self) -> None:
        with self._changed:
            owner = f"{self._id}:{self._epoch}"
            self._epoch += 1
            self._queue.clear()
            self._pending = 0
        deadline = time.monotonic() + _CANCEL_TIMEOUT_S
        while True:
            self._builds.abort(owner)
            try:
                self._remote.control("cancel", self._id, timeout_s=_CANCEL_TIMEOUT_S)
            except DeviceLost:
                break
            if self._at_work.acquire(timeout=0.2):
                self._at_work.release()
                return
            if time.monotonic() > deadline:
                break
        self._remote.kill()  # it does not listen: its death frees the device

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.cancel()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CANCEL_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- the background thread ---

    def _pump(self) -> None:
        while not self._closed:
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

    def _exclusive_stay(self) -> None:
        """Build a chunk, then measure it: on a CPU the two would disturb each other."""
        self._stay()
        try:
            warm = threading.Thread(target=self._warm_up)
            warm.start()
            built = self._build(self._take(CHUNK))
            warm.join()
            for job, result in built:
                self._finish(job, result)
        finally:
            self._leave()

    def _overlapped_stay(self) -> None:
        """Measure what is built while the builders work ahead; leave the device when nothing is ready."""
        held = False
        try:
            for _ in range(CHUNK):
                for job in self._take(self._builds.room):
                    self._start_build(job)
                ready = self._builds.collect(0.0 if held else _WAIT_S)
                if not ready:
                    break
                if not held:
                    self._stay()
                    held = True
                for waiting, result in ready:
                    assert isinstance(waiting, _Job)
                    self._finish(waiting, result)
        finally:
            if held:
                self._leave()

    def _stay(self) -> None:
        epoch = self._epoch
        while True:
            try:
                self._remote.acquire(self._id, lambda: self._epoch != epoch or self._closed)
            except DeviceLost:
                continue
            return

    def _renew(self) -> None:
        """Still there. With the actor the hold on the device is gone: then it is taken again."""
        try:
            held = self._remote.control("renew", self._id)
        except DeviceLost:
            held = False
        if not held:
            self._stay()

    def _leave(self) -> None:
        try:
            self._remote.control("release", self._id)
        except DeviceLost:
            return  # with the actor its hold on the device is gone

    def _warm_up(self) -> None:
        try:
            self._remote.work("warm_up", True)
        except DeviceLost:
            return  # the next call goes to a new actor

    def _take(self, most: int) -> list[_Job]:
        with self._changed:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _build(self, jobs: Sequence[_Job]) -> list[tuple[_Job, BuildResult]]:
        """All of them, in the order of submission; renews the hold on the device meanwhile."""
        ended: dict[int, BuildResult] = {}
        waiting = deque(enumerate(jobs))
        while waiting or self._builds.in_flight:
            while waiting and self._builds.room > 0:
                place, job = waiting.popleft()
                self._builds.submit(place, self._request(job.trial.candidate, job.trial.ordinal, job.epoch))
            for key, result in self._builds.collect(_WAIT_S):
                assert isinstance(key, int)
                ended[key] = result
            self._renew()
        return [(job, ended[place]) for place, job in enumerate(jobs)]

    def _start_build(self, job: _Job) -> None:
        self._builds.submit(job, self._request(job.trial.candidate, job.trial.ordinal, job.epoch))

    def _request(self, candidate: Candidate, ordinal: int | None, epoch: int) -> BuildRequest:
        entry = self._scenario.entry(self._task.workload.key, candidate, ordinal) if self._scenario else None
        return BuildRequest(
            self._open_task.workload,
            self._task.target.to_json(),
            candidate.to_json(),
            self._policy.build_timeout_s,
            f"{self._id}:{epoch}",
            entry.to_json() if entry else None,
        )

    def _finish(self, job: _Job, built: BuildResult) -> None:
        """Measure what was built and hand the result out."""
        if job.epoch != self._epoch:
            return
        trial = job.trial
        if built.outcome is not Outcome.OK:
            failed = Measurement(built.outcome, error=built.error, identity=self._identity, build_secs=built.build_secs)
            self._done.put((job.epoch, Measured(trial, failed)))
            return
        digest = self._keep(trial.candidate, built)
        self._ordinals[trial.candidate.key] = trial.ordinal
        entrant = self._entrant(trial.candidate, trial.ordinal)
        try:
            measurement = self._remote.work("measure", self._id, self._open_task, entrant, job.best_latency_s)
        except DeviceLost as fault:
            measurement = Measurement(Outcome.WORKER_LOST, error=str(fault), identity=self._identity)
            self._stay()
        measurement = dataclasses.replace(measurement, build_secs=built.build_secs)
        self._done.put((job.epoch, Measured(trial, measurement, digest)))

    def _build_missing(self, candidates: Sequence[Candidate]) -> dict[str, str]:
        """Build the candidates that this session has no artifact of: candidate key -> error of those that failed."""
        failures: dict[str, str] = {}
        epoch = self._epoch
        missing = deque(c for c in candidates if c.key not in self._digests)
        while missing or self._builds.in_flight:
            while missing and self._builds.room > 0:
                candidate = missing.popleft()
                self._builds.submit(candidate, self._request(candidate, self._ordinals.get(candidate.key), epoch))
            for key, built in self._builds.collect(_WAIT_S):
                assert isinstance(key, Candidate)
                if built.outcome is Outcome.OK:
                    self._keep(key, built)
                else:
                    failures[key.key] = f"{built.outcome}: {built.error}"
            self._renew()
        return failures

    def _keep(self, candidate: Candidate, built: BuildResult) -> str:
        assert built.artifact is not None
        assert built.digest is not None
        (self._folder / built.digest).write_bytes(built.artifact)
        self._digests[candidate.key] = built.digest
        return built.digest

    def _entrant(self, candidate: Candidate, ordinal: int | None) -> Entrant:
        entry = self._scenario.entry(self._task.workload.key, candidate, ordinal) if self._scenario else None
        data = (self._folder / self._digests[candidate.key]).read_bytes()
        return Entrant(candidate.key, data, entry.to_json() if entry else None)
