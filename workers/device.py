"""One device: who may use it, the child that owns it, and what each end of the child means for a candidate.

Lives in the measuring actor, knows nothing of Ray, loads neither torch nor tvm. Everything that crosses to and from
the child is JSON and bytes. Thread-safe: `cancel` may come while `measure` runs.
"""

import contextlib
import dataclasses
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search_space.environment import Observation
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy, TaskRefused
from workers import bench
from workers.child import ChildProcess, ChildSpec, Reply
from workers.child_end import End, Failure
from workers.device_lock import HOLDER_TTL_S, DeviceLease, HostLock
from workers.final_bed import OUTCOMES, Entrant, OpenTask, RemoteBed
from workers.median_interval import median_ci95
from workers.self_test import SelfTest
from workers.spare import ChildFailedToStart, SparedChild

Json = Mapping[str, object]

# Inputs and a float64 reference of the largest workloads take minutes on two cores.
OPEN_TIMEOUT_S = 600.0
SELF_TEST_TIMEOUT_S = 60.0
POLL_S = 0.05  # how often a waiting caller asks for the device again


@dataclass(frozen=True)
class DeviceSettings:
    """`child` is what owns the device; `lock_name` what two measurers must share to keep out of each other's way.

    A device is looked at every `look_every_s` seconds while nobody uses it, every `look_again_s` where it was found
    unfit, to see it recover. A session that is silent for `holder_ttl_s` loses the device.
    """

    device_id: str
    lock_name: str
    lock_dir: str
    child: ChildSpec
    look_every_s: float = 300.0
    look_again_s: float = 15.0
    holder_ttl_s: float = HOLDER_TTL_S


class TaskNotOpened(TaskRefused):
    """The task's inputs or reference could not be made on this device; the message says why."""


class Device:
    def __init__(self, settings: DeviceSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        lock = HostLock(Path(settings.lock_dir), settings.lock_name)
        self._lease = DeviceLease(lock, holder_ttl_s=settings.holder_ttl_s)
        self._children = SparedChild(settings.child)
        self._cancelled: set[str] = set()
        self._running = 0
        self._doing: str | None = None
        self._taken_up: tuple[int, Json] | None = None

    # --- who may use it ---

    def acquire(self, session: str) -> bool:
        """True when the session holds the device now. Ask again until then; first come, first served."""
        with self._guard:
            self._cancelled.discard(session)
            return self._lease.try_acquire(session, busy=self._running > 0)

    def renew(self, session: str) -> bool:
        with self._guard:
            return self._lease.renew(session)

    def wanted(self, session: str) -> bool:
        """Whether another session waits for what `session` holds; keeps it held."""
        with self._guard:
            return not self._lease.renew(session) or self._lease.wanted

    def release(self, session: str) -> None:
        with self._guard:
            self._lease.release(session)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the device for what is no session's: its roofs."""
        session = uuid.uuid4().hex
        while not self.acquire(session):
            time.sleep(POLL_S)
        with self._guard:
            self._running += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
            self.release(session)

    def warm_up(self, wait: bool) -> None:
        """Have a child and a spare ready; `wait` where their imports would disturb a measurement."""
        with self._guard:
            self._running += 1
        try:
            self._children.active()
            self._children.prepare(wait)
        finally:
            with self._guard:
                self._running -= 1

    def self_test(self, scripted: Json | None = None) -> SelfTest | None:
        """One look at the device (`scripted`: what it is to find); None while somebody uses it."""
        session = uuid.uuid4().hex
        if not self.acquire(session):
            self.release(session)
            return None
        with self._guard:
            self._running += 1
        message = {"do": "self_test", "device_id": self._settings.device_id, "scripted": scripted}
        try:
            reply = self._children.active().request(message, timeout_s=SELF_TEST_TIMEOUT_S)
        except ChildFailedToStart as fault:
            return SelfTest(error=f"the measuring child does not start: {fault}")
        finally:
            with self._guard:
                self._running -= 1
            self.release(session)
        if isinstance(reply, Reply):
            return SelfTest.from_json(reply.message)
        return None if reply.end in (End.LOST, End.CANCELLED) else SelfTest(error=reply.message)

    def cancel(self, session: str) -> None:
        """Kill what runs for the session; the device is free when this returns."""
        with self._guard:
            self._cancelled.add(session)
            if self._lease.holder == session:
                self._children.kill()
            self._lease.release(session)

    def close(self) -> None:
        self._children.close()

    def child_pid(self) -> int | None:
        return self._children.pid

    def doing(self) -> str | None:
        """The request that the child works on now, None when it is idle."""
        return self._doing

    # --- what it does; the session must hold it ---

    def baseline(self, session: str, task: OpenTask) -> tuple[str, Measurement]:
        """Make inputs and references, measure the vendor's kernel: (its name, its measurement)."""
        start = time.time()
        message = {"do": "baseline", "vendor": task.vendor, "policy": _policy_json(task.policy)}
        reply = self._ask(session, task, message, b"", OPEN_TIMEOUT_S)
        measurement = self._measurement(task, reply, start)
        if isinstance(reply, Failure):
            return "unknown", measurement
        return str(reply.message["name"]), measurement

    def measure(self, session: str, task: OpenTask, entrant: Entrant, best_latency_s: float | None) -> Measurement:
        start = time.time()
        message = {
            "do": "measure",
            "name": entrant.name,
            "entry": entrant.entry,
            "best_latency_s": best_latency_s,
            "policy": _policy_json(task.policy),
        }
        reply = self._ask(session, task, message, entrant.artifact, task.policy.run_timeout_s)
        return self._measurement(task, reply, start)

    def final(
        self, session: str, task: OpenTask, entrants: Sequence[Entrant], vendor: str
    ) -> tuple[bench.Contest[str], Mapping[str, float], tuple[float, float]]:
        """(times, largest relative errors, interval). A crash costs its cause alone, and the child is replaced."""
        start = time.time()
        bed = RemoteBed(lambda m, p: self._ask(session, task, m, p, task.policy.run_timeout_s), entrants, vendor, task)
        bed.admit_all()
        rng = random.Random(task.seed)
        kernels = {name: (name, calls) for name, calls in bed.calls.items()}
        contest = bench.contest(bed, kernels, task.policy, rng, time.monotonic)
        failures = {**bed.failures, **contest.failures}
        return bench.Contest(contest.times, failures), bed.errors, (start, time.time())

    def _ask(self, session: str, task: OpenTask, message: Json, payload: bytes, timeout_s: float) -> Reply | Failure:
        """One request to the child, on the session's task. Raises TaskNotOpened, ChildFailedToStart."""
        with self._guard:
            if session in self._cancelled or self._lease.holder != session:
                return Failure(End.CANCELLED, "the session does not hold the device")
            self._running += 1
        try:
            child = self._children.active()
            lost = self._take_up(child, task)
            if lost is not None:
                return lost
            self._doing = str(message["do"])
            return child.request(message, payload, timeout_s=timeout_s)
        finally:
            self._doing = None
            with self._guard:
                self._running -= 1
                self._lease.renew(session)

    def _take_up(self, child: ChildProcess, task: OpenTask) -> Failure | None:
        """Tell the child which task comes now, unless it knows."""
        current = (self._children.generation, task.workload)
        if self._taken_up == current:
            return None
        ready = child.request({"do": "open", "workload": task.workload}, timeout_s=OPEN_TIMEOUT_S)
        if isinstance(ready, Reply):
            self._taken_up = current
            return None
        if ready.end in (End.LOST, End.CANCELLED):
            return ready
        raise TaskNotOpened(f"the task's inputs or reference could not be made: {ready.message}")

    def _measurement(self, task: OpenTask, reply: Reply | Failure, start: float) -> Measurement:
        load = os.getloadavg()[0]
        details: dict[str, object] = {"load_1min": round(load, 2)}
        seen = Observation(device_id=self._settings.device_id, host=socket.gethostname(), details=details)
        interval = (start, time.time())
        if isinstance(reply, Failure):
            return Measurement(
                OUTCOMES[reply.end], error=reply.message, interval=interval, identity=task.identity, observation=seen
            )
        told = reply.message
        if "rejected" in told:
            outcome, error = Outcome(str(told["rejected"])), str(told["error"])
            return Measurement(outcome, error=error, interval=interval, identity=task.identity, observation=seen)
        times = tuple(float(t) for t in _list(told["run_secs"]))
        details["calls_per_repeat"] = told["calls"]
        seen = _with_sensors(seen, told.get("seen"))
        error_seen = told["max_rel_err"]
        return Measurement(
            Outcome.OK,
            run_secs=times,
            error=str(told["note"]) if told.get("note") else None,
            interval=interval,
            identity=task.identity,
            observation=seen,
            max_rel_err=float(str(error_seen)) if error_seen is not None else None,
            ci95_secs=median_ci95(times),
            raced_out=bool(told["raced_out"]),
        )


def _with_sensors(seen: Observation, told: object) -> Observation:
    """What the child's sensors saw beside what the host knows."""
    if not isinstance(told, Mapping) or not told:
        return seen
    fields = {name: value for name, value in told.items() if name != "details"}
    more = told.get("details")
    details = {**seen.details, **(more if isinstance(more, Mapping) else {})}
    return dataclasses.replace(seen, **fields, details=details)


def _policy_json(policy: MeasurePolicy) -> Json:
    return dict(vars(policy))


def _list(value: object) -> list[float]:
    assert isinstance(value, list)
    return value
