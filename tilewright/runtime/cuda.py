"""Runs a cubin on torch tensors through the CUDA driver: on torch's current stream, without TVM."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.artifact import Artifact, ArtifactError, damaged
from tilewright.runtime.cuda_driver import INVALID_CONTEXT, CudaError
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
        launch = artifact.manifest.get("launch")
        if not isinstance(launch, dict) or CUBIN not in artifact.files:
            raise damaged(f"{CUBIN} or its launch description is missing")
        self._launch: dict[str, Any] = launch
        self._names = _extents(artifact.manifest["workload"])
        specs = (*self.inputs, *self.outputs)
        self._checks = tuple(Checker(spec, "cuda") for spec in specs)
        size = self._torch.Size
        self._plan = tuple((torch_dtype(s.dtype), size(s.shape), c) for s, c in zip(specs, self._checks))
        self._operands = tuple(spec.name for spec in specs)
        self._sizes = tuple(spec.nbytes for spec in specs)
        self._has_workspace = bool(launch.get("workspace"))
        self._programs: dict[int, CudaProgram] = {}
        self._bound: OrderedDict[tuple[int, ...], Bound] = OrderedDict()
        self._captured: list[Bound] = []
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        if len(inputs) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} inputs ({names}), got {len(inputs)}")
        if out is None:
            outputs = self._new_outputs(inputs[0])
        else:
            outputs = out if isinstance(out, tuple) else (out,)
            if len(outputs) != len(self.outputs):
                names = ", ".join(spec.name for spec in self.outputs)
                raise TypeError(f"out: expected {len(self.outputs)} tensors ({names}), got {len(outputs)}")
        addresses = self._addresses((*inputs, *outputs))
        if out is not None:
            self._refuse_overlap(addresses)
        device = inputs[0].get_device()
        stream = self._torch._C._cuda_getCurrentRawStream(device)
        with self._lock:
            bound = self._binding(device, addresses)
            try:
                bound.launch(stream)
            except CudaError as error:
                if error.code != INVALID_CONTEXT:
                    raise
                self._torch.cuda.set_device(device)
                bound.launch(stream)
        return outputs[0] if len(outputs) == 1 else outputs

    def _addresses(self, tensors: tuple[Any, ...]) -> tuple[int, ...]:
        """One pass without a call per operand for what is right; a Checker words what is not."""
        found = []
        for value, (dtype, shape, check) in zip(tensors, self._plan):
            if (
                getattr(value, "dtype", None) is dtype
                and value.shape == shape
                and value.is_cuda
                and value.is_contiguous()
                and not value.requires_grad
            ):
                found.append(value.data_ptr())
            else:
                found.append(check(value))
        return tuple(found)

    def _new_outputs(self, like: Any) -> tuple[Any, ...]:
        device = getattr(like, "device", None)
        return tuple([self._torch.empty(s.shape, dtype=torch_dtype(s.dtype), device=device) for s in self.outputs])

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
        if self._has_workspace and self._torch.cuda.is_current_stream_capturing():
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
                self._programs[device] = CudaProgram(self.artifact.files[CUBIN], self._launch)
            except CudaError as error:
                message = f"the artifact does not run on this device ({error}): tune on this machine"
                raise ArtifactError(message) from None

        def allocate(_name: str, nbytes: int, zero: bool) -> tuple[object, int]:
            make = self._torch.zeros if zero else self._torch.empty
            owner = make(nbytes, dtype=self._torch.uint8, device=f"cuda:{device}")
            return owner, owner.data_ptr()

        return self._programs[device].bind(self._names, dict(zip(self._operands, addresses)), allocate)

    def _refuse_overlap(self, addresses: tuple[int, ...]) -> None:
        split = len(self.inputs)
        for at in range(split, len(addresses)):
            first = addresses[at]
            end = first + self._sizes[at]
            for i in range(split):
                if first < addresses[i] + self._sizes[i] and addresses[i] < end:
                    raise ValueError(f"{self._operands[at]}: out overlaps {self._operands[i]}")


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
    return {"batch": 1, "groups": 1, **numbers}
