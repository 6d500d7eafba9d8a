"""One builder: a child that compiles, and what each end of it means for a candidate. Knows nothing of Ray."""

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.outcome import Outcome
from workers.build import BuildResult
from workers.child import ChildSpec, Reply
from workers.child_end import End, Failure
from workers.spare import ChildFailedToStart, SparedChild

Json = Mapping[str, object]

WARM_TIMEOUT_S = 300.0

_OUTCOMES = {
    End.ERROR: Outcome.BUILD_ERROR,
    End.TIMEOUT: Outcome.BUILD_TIMEOUT,
    End.CRASH: Outcome.BUILD_ERROR,
    End.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    End.LOST: Outcome.WORKER_LOST,
    End.CANCELLED: Outcome.WORKER_LOST,
}


@dataclass(frozen=True)
class BuildRequest:
    """`owner`: builds are aborted by owner. `entry`: what a scripted build does, None where it is real."""

    workload: Json
    target: Json
    candidate: Json
    timeout_s: float
    owner: str
    entry: Json | None = None


class Builder:
    """`build` is for one thread at a time and total; `abort` may come from any other."""

    def __init__(self, child: ChildSpec) -> None:
        self._children = SparedChild(child, spare=False)
        self._guard = threading.Lock()
        self._owner: str | None = None
        self._aborted: deque[str] = deque(maxlen=64)

    def build(self, request: BuildRequest) -> BuildResult:
        with self._guard:
            if request.owner in self._aborted:
                return BuildResult(Outcome.WORKER_LOST, error="cancelled")
            self._owner = request.owner
        try:
            return dataclasses.replace(self._build(request), ended_at=time.time())
        finally:
            with self._guard:
                self._owner = None

    def warm(self, kind: str) -> None:
        """Load what a build for `kind` of target needs; a child that cannot start says so at its first build."""
        with contextlib.suppress(ChildFailedToStart):
            self._children.active().request({"warm": kind}, timeout_s=WARM_TIMEOUT_S)

    def _build(self, request: BuildRequest) -> BuildResult:
        try:
            child = self._children.active()
        except ChildFailedToStart as fault:
            return BuildResult(_OUTCOMES[fault.end], error=f"the builder did not start: {fault}")
        message = {
            "workload": request.workload,
            "target": request.target,
            "candidate": request.candidate,
            "entry": request.entry,
        }
        start = time.monotonic()
        reply = child.request(message, timeout_s=request.timeout_s)
        if isinstance(reply, Reply):
            return BuildResult.from_json(reply.message, reply.payload)
        return _failed(reply, time.monotonic() - start)

    def abort(self, owner: str) -> None:
        """Kill what is being built for `owner`, and refuse what of it is still queued."""
        with self._guard:
            self._aborted.append(owner)
            if self._owner == owner:
                self._children.kill()

    def child_pid(self) -> int | None:
        return self._children.pid

    def close(self) -> None:
        self._children.close()


def _failed(failure: Failure, seconds: float) -> BuildResult:
    what = "the compiler" if failure.end is End.CRASH else "the build"
    return BuildResult(_OUTCOMES[failure.end], error=f"{what} {failure.message}", build_secs=seconds)
