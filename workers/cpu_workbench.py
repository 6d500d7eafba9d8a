"""Measuring on a CPU: guarded operands, the real check, the host's clock round batches of calls, warm caches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from search_space.dtypes import DTYPES
from search_space.workload import Workload
from tilewright import runtime
from workers import vendor_cpu

Json = Mapping[str, object]
Call = Callable[[], Any]

RECIPES = ("random", "adversarial")
_TORCH_DTYPES = {name: getattr(torch, "float8_e4m3fn" if name == "float8_e4m3" else name) for name in DTYPES}


def prepare_process(cores: int) -> None:
    """torch on the cores that the worker owns: the same pool and the same number of threads as ours."""
    torch.set_num_threads(cores)
    torch.set_grad_enabled(False)


class CpuKernel(Protocol):
    """What can be run on the operands of a bed."""

    exact: bool  # held to the error bound; the vendor's kernel is not refused for how it rounds

    def bind(self, operands: "Operands") -> Call:
        """Everything that is done once, ahead of the calls. A call returns its result, or None when written."""


@dataclass(frozen=True)
class Operands:
    """One input set with the (shared) outputs: tensors over guarded memory, in the workload's order."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    reference: Any


class ArtifactKernel:
    """A candidate, through the loader that serves it to users."""

    exact = True

    def __init__(self, artifact: bytes) -> None:
        self._kernel = runtime.load(artifact)

    def bind(self, operands: Operands) -> Call:
        kernel = self._kernel
        packed = [
            kernel.prepack(tensor, spec.name) if spec.name in kernel.prepacked else tensor
            for spec, tensor in zip(kernel.inputs, operands.inputs, strict=True)
        ]
        return kernel.launcher(packed, operands.outputs)


class VendorKernel:
    exact = False

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def bind(self, operands: Operands) -> Call:
        return vendor_cpu.vendor_call(self._workload, operands.inputs, operands.outputs)
