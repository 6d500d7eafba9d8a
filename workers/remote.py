"""The driver's view of the actors: every death of an actor becomes a value or a named fault."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from tuner.outcome import Outcome
from tuner.ports import MeasurerUnavailable
from workers.build import BuildResult
from workers.builder import BuildRequest
from workers.ray_actors import CONTROL

POLL_S = 0.02


class DeviceLost(RuntimeError):
    """The measuring actor died; the next call goes to a new one."""


class Cancelled(RuntimeError):
    """The session was cancelled while it waited for the device."""


@dataclass(frozen=True)
class Call:
    """A call on its way to an actor, or there."""

    actor: Any
    reference: Any


class RemoteDevice:
    """One device's actor, remade when it dies. Thread-safe."""

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._guard = threading.Lock()
        self._actor: Any = None

    def actor(self) -> Any:
        with self._guard:
            if self._actor is None:
                self._actor = self._make()
            return self._actor

    def work(self, method: str, *arguments: object) -> Any:
        """A call that may take as long as its own limits allow. Raises DeviceLost."""
        return self.answer(self.start(method, *arguments))

    def start(self, method: str, *arguments: object) -> "Call":
        """The same without waiting: such calls are done one after another, in this order."""
        actor = self.actor()
        return Call(actor, getattr(actor, method).remote(*arguments))

    def answer(self, call: "Call") -> Any:
        """What a started call gave. Raises DeviceLost."""
        return self._get(call.actor, call.reference, None)

    def control(self, method: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """A call that is answered at once, even while a measurement runs. Raises DeviceLost, MeasurerUnavailable."""
        actor = self.actor()
        reference = getattr(actor, method).options(concurrency_group=CONTROL).remote(*arguments)
        return self._get(actor, reference, timeout_s or self._timeout_s)

    def acquire(self, session: str, cancelled: Callable[[], bool]) -> None:
        """Wait until the session holds the device. Raises Cancelled, DeviceLost, MeasurerUnavailable."""
        while not self.control("acquire", session):
            if cancelled():
                self.control("release", session)
                raise Cancelled
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End the actor, and with it its child."""
        with self._guard:
            if self._actor is not None:
                ray.kill(self._actor)
                self._actor = None

    def _forget(self, actor: Any) -> None:
        with self._guard:
            if self._actor is actor:
                self._actor = None
        # Until Ray itself takes the actor for dead, its name leads back to it; a kill says so.
        ray.kill(actor)
        time.sleep(POLL_S)

    def _get(self, actor: Any, reference: Any, timeout_s: float | None) -> Any:
        try:
            return ray.get(reference, timeout=timeout_s)
        except GetTimeoutError as fault:
            message = f"the device's actor did not answer within {timeout_s:g} s: is its host still in the cluster?"
            raise MeasurerUnavailable(message) from fault
        except RayActorError as fault:
            self._forget(actor)
            raise DeviceLost(str(fault).splitlines()[0]) from fault
        except RayTaskError as fault:
            raise fault.as_instanceof_cause() from None


class BuilderPool:
    """The builder actors of one device, started at the first use and replaced when they die. Thread-safe."""

    def __init__(self, make: Callable[[int], Sequence[Any]], count: int) -> None:
        self._make = make
        self.count = count
        self._guard = threading.Lock()
        self._actors: list[Any] = []
        self._loads: list[int] = []  # builds of all sessions that each actor has

    def actors(self) -> Sequence[Any]:
        with self._guard:
            if not self._actors:
                self._actors = list(self._make(self.count))
                self._loads = [0] * len(self._actors)
            return tuple(self._actors)

    def take(self) -> Any:
        """The builder with the fewest builds; it has one more from now on, until `give_back`."""
        self.actors()
        with self._guard:
            place = self._loads.index(min(self._loads))
            self._loads[place] += 1
            return self._actors[place]

    def give_back(self, actor: Any) -> None:
        with self._guard:
            if actor in self._actors:
                place = self._actors.index(actor)
                self._loads[place] = max(0, self._loads[place] - 1)

    def warm(self, kind: str) -> None:
        """Start the builders and what they import for a kind of target, without waiting for it."""
        for actor in self.actors():
            actor.warm.remote(kind)

    def replace(self, dead: Any) -> None:
        with self._guard:
            if dead in self._actors:
                place = self._actors.index(dead)
                self._actors[place], self._loads[place] = self._make(1)[0], 0

    def child_pids(self) -> list[int | None]:
        pids = [a.child_pid.options(concurrency_group=CONTROL).remote() for a in self.actors()]
        answer: list[int | None] = ray.get(pids)
        return answer

    def close(self) -> None:
        with self._guard:
            for actor in self._actors:
                ray.kill(actor)
            self._actors.clear()


class BuildWindow:
    """The builds of one session in flight. For one thread, but for `abort`."""

    def __init__(self, pool: BuilderPool) -> None:
        self._pool = pool
        self._flying: dict[Any, tuple[object, Any]] = {}  # reference -> (job, actor)

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def room(self) -> int:
        """Builds that may be submitted so that no builder idles and none has a long queue."""
        return 2 * self._pool.count - len(self._flying)

    def submit(self, job: object, request: BuildRequest) -> None:
        actor = self._pool.take()
        self._flying[actor.build.remote(request)] = (job, actor)

    def collect(self, timeout_s: float, unless: Call | None = None) -> list[tuple[object, BuildResult]]:
        """The builds that ended; waits up to `timeout_s` for the first, or until `unless` is answered."""
        awaited = [*self._flying, *([] if unless is None else [unless.reference])]
        if not awaited:
            return []
        ready, _ = ray.wait(awaited, num_returns=1, timeout=timeout_s)
        return [self._take(reference) for reference in ready if reference in self._flying]

    def abort(self, owner: str) -> None:
        """Kill or drop the builds of `owner`; they end as WORKER_LOST."""
        for actor in self._pool.actors():
            actor.abort.options(concurrency_group=CONTROL).remote(owner)

    def _take(self, reference: Any) -> tuple[object, BuildResult]:
        job, actor = self._flying.pop(reference)
        self._pool.give_back(actor)
        try:
            return job, ray.get(reference)
        except RayActorError as fault:
            self._pool.replace(actor)
            return job, BuildResult(Outcome.WORKER_LOST, error=f"the builder died: {str(fault).splitlines()[0]}")
