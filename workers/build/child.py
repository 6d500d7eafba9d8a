"""What runs in a builder's child: TVM is imported once, a candidate that kills its compiler costs one process."""

import importlib
from collections.abc import Callable, Mapping

from search_space.candidate import Candidate
from search_space.registry import all_sketches
from search_space.target import Target
from search_space.workload import parse_workload


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
