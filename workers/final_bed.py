"""What the measuring actor sends its child, and the final's view of it: kernels by name, each timed by a request.

The rounds of a final are driven from outside the child, so that a crash in the middle costs its cause alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from search_space.environment import EnvironmentIdentity
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers import bench
from workers.child import Reply
from workers.child_end import End, Failure

Json = Mapping[str, object]

OUTCOMES = {
    End.ERROR: Outcome.RUN_ERROR,
    End.TIMEOUT: Outcome.RUN_TIMEOUT,
    End.CRASH: Outcome.RUN_ERROR,
    End.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    End.LOST: Outcome.WORKER_LOST,
    End.CANCELLED: Outcome.WORKER_LOST,
}


@dataclass(frozen=True)
class OpenTask:
    """What a child needs to know to take a task up: also after the child before it died. `seed` orders the final."""

    workload: Json
    policy: MeasurePolicy
    seed: int
    identity: EnvironmentIdentity
    vendor: Json = field(default_factory=dict)  # how a scripted vendor behaves; empty: really measured
    peers: tuple[str, ...] = ()  # names of contestants that are users' own kernels


@dataclass(frozen=True)
class Entrant:
    """A kernel to run: what was built, and (scripted only) what it does."""

    name: str
    artifact: bytes
    entry: Json | None = None


class RemoteBed:
    """The bed as the final sees it: kernels by name, held by a child; reloaded when the child had to be replaced."""

    def __init__(
        self, ask: Callable[[Json, bytes], Reply | Failure], entrants: Sequence[Entrant], vendor: str, task: OpenTask
    ) -> None:
        self._ask = ask
        self._entrants = {e.name: e for e in entrants}
        self._vendor = vendor
        self._task = task
        self.calls: dict[str, int] = {}
        self.errors: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def admit_all(self) -> None:
        for name in (self._vendor, *self._task.peers, *self._entrants):
            told = self._request(name, {"do": "admit"})
            if isinstance(told, str):
                self.failures[name] = told
                continue
            self.calls[name] = int(str(told["calls"]))
            if told["max_rel_err"] is not None:
                self.errors[name] = float(str(told["max_rel_err"]))

    def time(self, kernel: str, calls: int, warm_up: bool = False) -> float:
        told = self._request(kernel, {"do": "time", "calls": calls, "warm_up": warm_up})
        if isinstance(told, str):
            raise bench.Rejected(Outcome.RUN_ERROR, told)
        return float(str(told["secs"]))

    def check(self, kernel: str) -> float | None:
        return self.errors.get(kernel)

    def verify_guards(self) -> None:
        """The child verifies them after every timed batch of a final."""

    def _request(self, name: str, message: Json) -> Json | str:
        """The answer, or the error as text. A child that was replaced says that it does not know the kernel: then
        it is sent along."""
        entrant = self._entrants.get(name)
        body = {**message, "name": name, "entry": entrant.entry if entrant else None, "vendor": self._task.vendor}
        reply = self._ask(body, b"")
        if isinstance(reply, Failure) and reply.end is End.LOST:  # nobody's fault: once more, on a new child
            reply = self._ask(body, b"")
        if isinstance(reply, Reply) and reply.message.get("unknown"):
            reply = self._ask({**body, "load": True}, entrant.artifact if entrant else b"")
        if isinstance(reply, Failure):
            return f"{OUTCOMES[reply.end]}: {reply.message}"
        if "rejected" in reply.message:
            return f"{reply.message['rejected']}: {reply.message['error']}"
        return reply.message
