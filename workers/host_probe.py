"""The child that finds out what a device is and how fast it can be: it loads what that takes, and ends after."""

import importlib
from collections.abc import Callable, Mapping

from search_space.target import Target
from tuner.ports import MeasurePolicy

Json = Mapping[str, object]

_ROOFS = {"cpu": ("workers.roofs", "measure_roofs"), "cuda": ("workers.cuda_roofs", "measure_gpu_roofs")}


def make_handler(arguments: Json) -> Callable[[Json, bytes], tuple[Json, bytes]]:
    """Requests: {"do": "identify"} -> {"target", "identity"} of the CPU; {"do": "identify_gpu"} -> the same of the one
    GPU that the environment shows, with what is `missing` to build for it; {"do": "roofs", "target"} -> {"roofs"}."""

    def handle(message: Json, payload: bytes) -> tuple[Json, bytes]:
        if message["do"] == "identify":
            from workers.host import host_identity, host_target

            return {"target": host_target().to_json(), "identity": host_identity(MeasurePolicy()).to_json()}, b""
        if message["do"] == "identify_gpu":
            return _identify_gpu(), b""
        told = message["target"]
        assert isinstance(told, Mapping)
        target = Target.from_json(told)
        module, function = _ROOFS[target.kind]
        return {"roofs": getattr(importlib.import_module(module), function)(target).to_json()}, b""

    return handle


def _identify_gpu() -> Json:
    """RuntimeError when the environment does not show exactly one GPU."""
    from workers.build.cuda import compiler_version
    from workers.build.result import BuildToolMissing
    from workers.gpu_host import read_gpus

    gpus = read_gpus()
    if len(gpus) != 1:
        raise RuntimeError(f"the device is not there: {len(gpus)} GPUs are visible to its probe")
    missing = ""
    try:
        compiler = compiler_version()
    except BuildToolMissing as fault:
        compiler, missing = "none", str(fault)
    identity = gpus[0].identity(compiler)
    return {"target": gpus[0].target().to_json(), "identity": identity.to_json(), "missing": missing}
