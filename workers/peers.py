"""A user's own kernel in a final: a function that they name on their own command line, checked and timed as ours are.

The function is `function(workload, inputs, outputs)`: the workload's JSON, tensors in the workload's order, on the
device. It returns a call without arguments, which writes `outputs` or returns the (first) output, or None where it has
no kernel for that workload. What is done before it returns (compiling, packing, autotuning) is not timed. On a GPU the
call is captured in a CUDA graph.

A name is only ever taken from the configuration of the process that measures, never from a request: importing it runs
code.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from search_space.workload import Workload
from tuner.outcome import Outcome
from workers.bench import Rejected

_SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
Peer = Callable[[Mapping[str, object], tuple[Any, ...], tuple[Any, ...]], Callable[[], Any] | None]


class Operands(Protocol):
    @property
    def inputs(self) -> tuple[Any, ...]: ...

    @property
    def outputs(self) -> tuple[Any, ...]: ...


def check_spec(spec: str) -> str:
    """`spec`, which must be ``module:function``; ValueError otherwise."""
    if not _SPEC.fullmatch(spec):
        raise ValueError(f"--peer: must be module:function, got {spec!r}")
    return spec


class PeerKernel:
    exact = True  # held to the same error bound as ours

    def __init__(self, spec: str, workload: Workload) -> None:
        """Rejected when the function cannot be imported; the message says why."""
        module, _, name = check_spec(spec).partition(":")
        try:
            self._peer: Peer = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as fault:
            raise Rejected(Outcome.BUILD_ERROR, f"{spec}: {fault} (is its folder on PYTHONPATH?)") from None
        self._spec, self._workload = spec, workload

    def bind(self, operands: Operands) -> Callable[[], Any]:
        call = self._peer(self._workload.to_json(), operands.inputs, operands.outputs)
        if call is None:
            raise Rejected(Outcome.BUILD_ERROR, f"{self._spec} has no kernel for this workload")
        return call
