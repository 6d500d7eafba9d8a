"""Runs a cubin on torch tensors through the CUDA driver: on torch's current stream, without TVM."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.artifact import Artifact, ArtifactError, damaged
from tilewright.runtime.cuda_driver import CudaError
from tilewright.runtime.cuda_program import Bound, CudaProgram
from tilewright.runtime.kernel import Kernel, Packed
from tilewright.runtime.operands import Checker, torch_dtype

CUBIN = "kernel.cubin"
_BINDINGS = 256  # sets of addresses whose encoded tensor maps are kept


class CudaKernel(Kernel):
    """A cubin with its launch description.

    Tensor maps are encoded once for each set of addresses and kept. A call may be captured in a CUDA graph: a binding
    made during capture belongs to the graph, its workspace lives as long as this kernel. Two calls on the same
    tensors must not run concurrently on two streams.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self._torch = _torch_with_cuda()
        self._launch = artifact.manifest.get("launch")
        if not isinstance(self._launch, dict) or CUBIN not in artifact.files:
            raise damaged(f"{CUBIN} or its launch description is missing")
        self._names = _extents(artifact.manifest["workload"])
        self._checks = tuple(Checker(spec, "cuda") for spec in (*self.inputs, *self.outputs))
        self._operands = tuple(spec.name for spec in (*self.inputs, *self.outputs))
        self._programs: dict[int, CudaProgram] = {}
        self._bound: OrderedDict[tuple[int, ...], Bound] = OrderedDict()
        self._captured: list[Bound] = []
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        if len(inputs) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} inputs ({names}), got {len(inputs)}")
        if out is None:
            device = getattr(inputs[0], "device", None)
            outputs: tuple[Any, ...] = tuple(
                self._torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device) for spec in self.outputs
            )
        else:
            outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
            self._refuse_overlap(inputs, outputs)
        tensors = (*inputs, *outputs)
        addresses = tuple(check(value) for check, value in zip(self._checks, tensors, strict=True))
        stream = self._torch.cuda.current_stream()
        with self._lock:
            self._binding(stream.device_index, addresses).launch(stream.cuda_stream)
        return outputs[0] if len(outputs) == 1 else outputs

    def prepack(self, value: Any, operand: str | None = None) -> Packed:
        raise ValueError(f"operand: packed ahead are none; got {operand!r}")

    def launcher(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        addresses = [check(value) for check, value in zip(self._checks, (*inputs, *outputs), strict=True)]
        current = self._torch.cuda.current_stream
        bound = self._bind(current().device_index, addresses)
        kept = (tuple(inputs), tuple(outputs))

        def launch(_keep: object = kept) -> None:
            bound.launch(current().cuda_stream)

        return launch

    def _binding(self, device: int, addresses: tuple[int, ...]) -> Bound:
        if self._torch.cuda.is_current_stream_capturing():
            bound = self._bind(device, addresses)
            self._captured.append(bound)
            return bound
        key = (device, *addresses)
        if (known := self._bound.get(key)) is not None:
            self._bound.move_to_end(key)
            return known
        bound = self._bound[key] = self._bind(device, addresses)
        if len(self._bound) > _BINDINGS:
            self._torch.cuda.current_stream().synchronize()  # the oldest one's workspace may still be in use
            self._bound.popitem(last=False)
        return bound

    def _bind(self, device: int, addresses: Sequence[int]) -> Bound:
        if device not in self._programs:
            try:
                self._programs[device] = CudaProgram(self.artifact.files[CUBIN], self._launch)  # type: ignore[arg-type]
            except CudaError as error:
                message = f"the artifact does not run on this device ({error}): tune on this machine"
                raise ArtifactError(message) from None

        def allocate(_name: str, nbytes: int, zero: bool) -> tuple[object, int]:
            make = self._torch.zeros if zero else self._torch.empty
            owner = make(nbytes, dtype=self._torch.uint8, device=f"cuda:{device}")
            return owner, owner.data_ptr()

        return self._programs[device].bind(self._names, dict(zip(self._operands, addresses)), allocate)

    def _refuse_overlap(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if len(outputs) != len(self.outputs):
            names = ", ".join(spec.name for spec in self.outputs)
            raise TypeError(f"out: expected {len(self.outputs)} tensors ({names}), got {len(outputs)}")
        for value, spec in zip(outputs, self.outputs):
            first = value.data_ptr()
            for other, known in zip(inputs, self.inputs):
                start = other.data_ptr()
                if first < start + known.nbytes and start < first + spec.nbytes:
                    raise ValueError(f"{spec.name}: out overlaps {known.name}")


def _torch_with_cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise ArtifactError("the artifact is for a CUDA device, and torch sees none on this machine")
    torch.cuda.current_stream().cuda_stream  # noqa: B018  makes the context that the driver calls use
    return torch


def _extents(workload: object) -> dict[str, int]:
    """The extents that launch formulas name: every integer of the workload."""
    assert isinstance(workload, dict)
    numbers = {name: int(v) for name, v in workload.items() if isinstance(v, int) and not isinstance(v, bool)}
    return {"batch": 1, **numbers}
