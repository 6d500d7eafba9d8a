"""Finds the sketches: every folder of `search_space/sketches` whose `space` module defines SKETCH."""

import functools
import importlib
import pkgutil

from search_space import attention as _attention  # noqa: F401  registers the op
from search_space import gemm as _gemm  # noqa: F401  registers the op
from search_space import sketches
from search_space.errors import InvalidField
from search_space.sketch import Refusal, Sketch, Space
from search_space.target import Target
from search_space.workload import Workload

# Fields whose refusal says that a sketch is for other workloads or devices altogether.
_MADE_FOR_OTHERS = ("op", "target.arch", "dtype_a", "groups", "pass")


@functools.cache
def all_sketches() -> dict[str, Sketch]:
    """name -> sketch. Loads no tvm: `lower` modules are imported by workers alone."""
    found: dict[str, Sketch] = {}
    for info in pkgutil.iter_modules(sketches.__path__):
        if not info.ispkg:
            continue
        module = importlib.import_module(f"{sketches.__name__}.{info.name}.space")
        sketch: Sketch = module.SKETCH
        if sketch.name != info.name:
            raise ValueError(f"sketch in folder {info.name} calls itself {sketch.name}")
        found[sketch.name] = sketch
    return found


def get_sketch(name: str) -> Sketch:
    """KeyError for a name that no folder has."""
    return all_sketches()[name]


def generate_sketches(workload: Workload, target: Target) -> tuple[Space, ...]:
    """The spaces to search, simplest sketch first; empty when none can do the workload."""
    spaces = [
        Space(s, workload, target, s.knobs(workload, target))
        for s in all_sketches().values()
        if s.op == workload.op and s.target_kind == target.kind and s.refusal(workload, target) is None
    ]
    return tuple(sorted(spaces, key=lambda s: (s.sketch.complexity, s.sketch.name)))


def refusals(workload: Workload, target: Target) -> tuple[Refusal, ...]:
    """Why no sketch can do the workload there, one reason a sketch; empty when at least one can."""
    if generate_sketches(workload, target):
        return ()
    reasons = [
        r
        for s in all_sketches().values()
        if s.op == workload.op and s.target_kind == target.kind and (r := s.refusal(workload, target))
    ]
    if not reasons:
        ops = sorted({s.op for s in all_sketches().values() if s.target_kind == target.kind})
        reasons = [Refusal("op", f"no sketch for {workload.op} on {target.kind}", tuple(ops))]
    return tuple(reasons)


def check_supported(workload: Workload, target: Target) -> None:
    """InvalidField naming the workload's field when no sketch can do it there, or it does not fit the memory."""
    if target.memory_bytes and workload.footprint_bytes() > target.memory_bytes:
        message = f"the operands take {workload.footprint_bytes()} bytes, {target.model} has {target.memory_bytes}"
        raise InvalidField(_largest_extent(workload), message)
    reasons = refusals(workload, target)
    if reasons:
        # Every sketch refuses. One made for other types or cards says less than one that only minds the rest; among
        # equals the refusal that most sketches share is the one a user can act on.
        closest = [r for r in reasons if r.field not in _MADE_FOR_OTHERS] or list(reasons)
        first = max(closest, key=lambda r: sum(r.field == other.field for other in closest))
        raise InvalidField(first.field, first.reason, first.allowed)


def _largest_extent(workload: Workload) -> str:
    """The field to make smaller when the whole is too large."""
    extents = {k: v for k, v in workload.to_json().items() if isinstance(v, int) and not isinstance(v, bool)}
    return max(extents, key=lambda name: extents[name])
