"""A warm builder process: TVM is imported once, a candidate that kills its compiler costs one process."""

import importlib
import threading
from collections.abc import Callable, Mapping

from search_space.candidate import Candidate
from search_space.registry import all_sketches
from search_space.target import Target
from search_space.workload import Workload, parse_workload
from tuner.outcome import Outcome
from workers.build.result import BuildResult
from workers.child import ChildProcess, ChildSpec, End, Failure

_OUTCOMES = {
    End.ERROR: Outcome.BUILD_ERROR,
    End.TIMEOUT: Outcome.BUILD_TIMEOUT,
    End.CRASH: Outcome.BUILD_ERROR,
    End.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    End.LOST: Outcome.WORKER_LOST,
    End.CANCELLED: Outcome.WORKER_LOST,
}


class BuilderChild:
    """Builds candidates one after another in a killable child, which is replaced after it died.

    `build` is for one thread at a time and never raises for what a candidate does; `kill` may come from any thread.
    """

    def __init__(
        self,
        memory_limit_bytes: int = 0,
        cache_dir: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._spec = ChildSpec(
            "workers.build.child:make_handler",
            {"cache_dir": cache_dir},
            dict(environment or {}),
            memory_limit_bytes,
        )
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def warm(self) -> None:
        """Start the child now, without waiting for it."""
        self._living()

    def build(self, workload: Workload, target: Target, candidate: Candidate, timeout_s: float) -> BuildResult:
        request = {"workload": workload.to_json(), "target": target.to_json(), "candidate": candidate.to_json()}
        answer = self._living().request(request, timeout_s=timeout_s)
        if isinstance(answer, Failure):
            return self._failed(answer, timeout_s)
        return BuildResult.from_json(answer.message, answer.payload)

    def kill(self) -> None:
        """End a running build at once (it returns WORKER_LOST); the next build starts a new child."""
        with self._lock:
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None

    def _living(self) -> ChildProcess:
        with self._lock:
            if self._child is not None and not self._child.alive:
                self._child.close()
                self._child = None
            if self._child is None:
                self._child = ChildProcess(self._spec)
            return self._child

    def _failed(self, failure: Failure, timeout_s: float) -> BuildResult:
        if failure.end is not End.CANCELLED:
            self.warm()  # the next candidate should not wait for the imports
        outcome = _OUTCOMES[failure.end]
        what = "the compiler" if failure.end is End.CRASH else "the build"
        spent = timeout_s if outcome is Outcome.BUILD_TIMEOUT else 0.0
        return BuildResult(outcome, error=f"{what} {failure.message}", build_secs=spent)


def make_handler(
    arguments: Mapping[str, object],
) -> Callable[[Mapping[str, object], bytes], tuple[Mapping[str, object], bytes]]:
    """The child's side: everything slow is imported here."""
    from workers.build.build import backend_of, build_candidate
    from workers.build.cache import BuildCache

    folder = arguments.get("cache_dir")
    cache = BuildCache(str(folder)) if folder else None
    backend_of("cpu").identity()  # loads tvm

    def handle(message: Mapping[str, object], _payload: bytes) -> tuple[Mapping[str, object], bytes]:
        if "warm" in message:
            _load_lowerings(str(message["warm"]))
            return {}, b""
        target, candidate = message["target"], message["candidate"]
        assert isinstance(target, dict)
        assert isinstance(candidate, dict)
        result = build_candidate(
            parse_workload(message["workload"]), Target.from_json(target), Candidate.from_json(candidate), cache
        )
        return result.to_json(), result.artifact or b""

    return handle


def _load_lowerings(kind: str) -> None:
    """What TVM parses when a sketch's lowering is first imported takes longer than a build."""
    for sketch in all_sketches().values():
        if sketch.target_kind == kind:
            importlib.import_module(f"search_space.sketches.{sketch.name}.lower")
