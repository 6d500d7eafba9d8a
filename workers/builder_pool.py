"""The builders of one host, shared by the sessions on its devices, and the builds that a session has under way."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from tuner.outcome import Outcome
from workers.build import BuildResult
from workers.builder import BuildRequest
from workers.ray_actors import CONTROL
from workers.remote import Call


class BuilderPool:
    """`count` builder actors, started at the first use and replaced when they die. Thread-safe. `make` raises
    MeasurerUnavailable where their host has left."""

    def __init__(self, make: Callable[[int], Sequence[Any]], count: int) -> None:
        self._make = make
        self.count = count
        self._guard = threading.Lock()
        self._actors: list[Any] = []
        self._loads: Counter[Any] = Counter()  # builds under way, of all sessions, by the builder's place

    def actors(self) -> Sequence[Any]:
        with self._guard:
            if not self._actors:
                self._actors = list(self._make(self.count))
            return tuple(self._actors)

    def take(self) -> tuple[int, Any]:
        """(place, builder) of the one with the least to do; `done` gives it back."""
        actors = self.actors()
        with self._guard:
            place = min(range(len(actors)), key=lambda i: self._loads[i])
            self._loads[place] += 1
        return place, actors[place]

    def done(self, place: int) -> None:
        with self._guard:
            self._loads[place] -= 1

    def warm(self, kind: str) -> None:
        """Start the builders and what they import for a kind of target, without waiting for it."""
        for actor in self.actors():
            actor.warm.remote(kind)

    def replace(self, dead: Any) -> None:
        with self._guard:
            if dead in self._actors:
                self._actors[self._actors.index(dead)] = self._make(1)[0]

    def child_pids(self) -> list[int | None]:
        pids = [a.child_pid.options(concurrency_group=CONTROL).remote() for a in self.actors()]
        answer: list[int | None] = ray.get(pids)
        return answer

    def abort(self, owner: str) -> None:
        """Kill or drop the builds of `owner`; they end as WORKER_LOST."""
        with self._guard:
            actors = tuple(self._actors)
        for actor in actors:
            actor.abort.options(concurrency_group=CONTROL).remote(owner)

    def close(self) -> None:
        with self._guard:
            for actor in self._actors:
                ray.kill(actor)
            self._actors.clear()


class BuildWindow:
    """The builds of one session in flight. For one thread, but for `abort`."""

    def __init__(self, pool: BuilderPool) -> None:
        self._pool = pool
        self._flying: dict[Any, tuple[object, int, Any]] = {}  # reference -> (job, builder's place, builder)

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def room(self) -> int:
        """Builds that may be submitted so that no builder idles and none has a long queue."""
        return 2 * self._pool.count - len(self._flying)

    def submit(self, job: object, request: BuildRequest) -> None:
        place, actor = self._pool.take()
        self._flying[actor.build.remote(request)] = (job, place, actor)

    def collect(self, timeout_s: float, unless: Call | None = None) -> list[tuple[object, BuildResult]]:
        """The builds that ended; waits up to `timeout_s` for the first, or until `unless` is answered.
        MeasurerUnavailable when the host has left."""
        awaited = [*self._flying, *([] if unless is None else [unless.reference])]
        if not awaited:
            return []
        ready, _ = ray.wait(awaited, num_returns=1, timeout=timeout_s)
        return [self._take(reference) for reference in ready if reference in self._flying]

    def abort(self, owner: str) -> None:
        self._pool.abort(owner)

    def drop(self) -> None:
        """Forget what is under way: its session is over."""
        for _, place, _ in self._flying.values():
            self._pool.done(place)
        self._flying.clear()

    def _take(self, reference: Any) -> tuple[object, BuildResult]:
        job, place, actor = self._flying.pop(reference)
        self._pool.done(place)
        try:
            return job, ray.get(reference)
        except RayError as fault:
            self._pool.replace(actor)
            return job, BuildResult(Outcome.WORKER_LOST, error=f"the builder died: {str(fault).splitlines()[0]}")
