"""The child that finds out what a host's CPU is and how fast it can be: it loads tvm and torch, and ends after."""

import importlib
from collections.abc import Callable, Mapping

from search_space.target import Target
from tuner.ports import MeasurePolicy

Json = Mapping[str, object]


def make_handler(arguments: Json) -> Callable[[Json, bytes], tuple[Json, bytes]]:
    """Requests: {"do": "identify"} -> {"target", "identity"}; {"do": "roofs", "target"} -> {"roofs"}."""

    def handle(message: Json, payload: bytes) -> tuple[Json, bytes]:
        if message["do"] == "identify":
            from workers.host import host_identity, host_target

            return {"target": host_target().to_json(), "identity": host_identity(MeasurePolicy()).to_json()}, b""
        target = message["target"]
        assert isinstance(target, Mapping)
        roofs = importlib.import_module("workers.roofs").measure_roofs(Target.from_json(target))
        return {"roofs": roofs.to_json()}, b""

    return handle
