"""What a sketch's `lower` hands to the builder. `module` is a live tvm.IRModule and never leaves its process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Prepack:
    """An input that is packed once, ahead of the calls: the module's PrimFunc `symbol` takes the workload's operand
    `operand` and writes `nbytes` bytes, which ``main`` takes in its place."""

    operand: str
    symbol: str
    nbytes: int


@dataclass(frozen=True)
class Lowered:
    """`module` holds PrimFunc ``main`` (inputs, then outputs). On a GPU `launch` is the JSON-able launch description
    that `tilewright.runtime` reads (kernels with grid formulas, block, shared memory, tensor maps, attributes)."""

    module: Any
    prepack: tuple[Prepack, ...] = ()
    launch: Mapping[str, object] | None = None
