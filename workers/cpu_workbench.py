"""Measuring on a CPU: guarded operands, the real check, the host's clock round batches of calls, warm caches."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from search_space.workload import Workload
from tilewright import runtime
from tuner.outcome import Outcome
from workers import heap, vendor_cpu
from workers.bench import Rejected
from workers.check import Acceptance
from workers.guarded import GuardedBuffer
from workers.inputs import RECIPES, make_inputs, torch_dtype
from workers.reference import reference

Json = Mapping[str, object]
Call = Callable[[], Any]


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

    recipe: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    right: Mapping[str, Any]  # output name -> float64
    acceptance: Acceptance


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


class CpuBed:
    """One task's operands on this host: two input sets, read-only and guarded, and one set of guarded outputs."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._outputs = [GuardedBuffer(operand, written=True) for operand in workload.outputs()]
        self._inputs: list[GuardedBuffer] = []
        self.sets = tuple(self._make_set(recipe) for recipe in RECIPES)
        self._bound: tuple[CpuKernel, Call] | None = None
        self.note: str | None = None  # what the last kernel that is not held to the bound did

    def _make_set(self, recipe: str) -> Operands:
        made = make_inputs(self._workload, recipe)
        truth = reference(self._workload, made)
        tensors = []
        for operand in self._workload.inputs():
            buffer = GuardedBuffer(operand, written=False)
            tensor = _tensor(buffer)
            tensor.copy_(made[operand.name])
            buffer.protect()
            self._inputs.append(buffer)
            tensors.append(tensor)
        outputs = tuple(_tensor(buffer) for buffer in self._outputs)
        return Operands(recipe, tuple(tensors), outputs, truth.outputs, Acceptance(self._workload, truth))

    def check(self, kernel: CpuKernel) -> float:
        self.note = None
        try:
            return max(self._check_on(kernel, operands) for operands in self.sets)
        finally:
            heap.trim()

    def _check_on(self, kernel: CpuKernel, operands: Operands) -> float:
        call = kernel.bind(operands)
        for buffer in self._outputs:
            buffer.poison()
        result = call()
        if result is not None:
            operands.outputs[0].copy_(result)
        self.verify_guards()
        names = [o.name for o in self._workload.outputs()]
        outputs = dict(zip(names, operands.outputs, strict=True))
        if not kernel.exact:  # the vendor gives no second output (the log-sum-exp): it is judged by its first
            outputs |= {name: operands.right[name] for name in names[1:]}
        found = operands.acceptance.check(outputs)
        if not found.ok:
            message = f"{operands.recipe} inputs: {found.message}"
            if kernel.exact:
                raise Rejected(Outcome.WRONG_ANSWER, message)
            self.note = message
        return float(found.max_rel_err)

    def time(self, kernel: CpuKernel, calls: int, warm_up: bool = False) -> float:
        call = self._call(kernel)
        if warm_up:
            call()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start

    def _call(self, kernel: CpuKernel) -> Call:
        """Bound to the random inputs, packed once; kept while the same kernel is timed."""
        if self._bound is None or self._bound[0] is not kernel:
            self._bound = (kernel, kernel.bind(self.sets[0]))
        return self._bound[1]

    def verify_guards(self) -> None:
        for buffer in self._outputs:
            buffer.verify()

    def close(self) -> None:
        """No tensor of the bed may be used after."""
        self._bound = None
        for buffer in (*self._inputs, *self._outputs):
            buffer.free()


class CpuWorkbench:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.bed = CpuBed(workload)

    def load(self, name: str, artifact: bytes, entry: Json | None) -> ArtifactKernel:
        return ArtifactKernel(artifact)

    def vendor(self, entry: Json) -> tuple[str, VendorKernel]:
        return vendor_cpu.NAME, VendorKernel(self._workload)

    def vendor_note(self) -> str | None:
        return self.bed.note

    def observed(self) -> Json:
        return {}

    def close(self) -> None:
        self.bed.close()


def _tensor(buffer: GuardedBuffer) -> Any:
    """The buffer's memory as a tensor; alive as long as the buffer is."""
    operand = buffer.operand
    return torch.frombuffer(buffer.view(), dtype=torch_dtype(operand.dtype)).view(operand.shape)
