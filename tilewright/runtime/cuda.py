"""Runs a cubin on torch tensors through the CUDA driver: on torch's current stream, without TVM."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.artifact import Artifact, ForeignArtifact, damaged
from tilewright.runtime.cuda_driver import INVALID_CONTEXT, CudaError
from tilewright.runtime.cuda_program import Allocate, Bound, CudaProgram
from tilewright.runtime.cuda_workspace import Workspaces, capture_of
from tilewright.runtime.kernel import Kernel, Packed
from tilewright.runtime.operands import Checker, torch_dtype

CUBIN = "kernel.cubin"
_BINDINGS = 1024  # sets of addresses whose encoded tensor maps are kept
ALIGNMENT = 16  # bytes: of every operand's address, as tensor maps and vector loads want it


class CudaKernel(Kernel):
    """A cubin with its launch description.

    Tensor maps are encoded once for each set of addresses and kept. A call may be captured in a CUDA graph. Workspaces
    belong to a stream, or to a graph (`Workspaces`), so calls may run concurrently on several streams.
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
        self._bound: dict[tuple[int, ...], Bound] = {}
        self._spaces = Workspaces(self._torch)
        self._lock = threading.Lock()
        self._raw_stream = self._torch._C._cuda_getCurrentRawStream
        self._current_device = self._torch._C._cuda_getDevice
        self._capturing = self._torch._C._cuda_isCurrentStreamCapturing
        check_arch(artifact.manifest["target"], self._torch.cuda.get_device_capability())

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
        self.run(inputs[0].get_device(), addresses)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, device: int, addresses: tuple[int, ...]) -> None:
        """Launch on torch's current stream of `device`, looking at nothing: `addresses` are those of the inputs, then
        the outputs, dense tensors of the declared shapes at multiples of ALIGNMENT. For callers that know all that."""
        if self._current_device() != device:
            with self._torch.cuda.device(device):
                self.run(device, addresses)
            return
        stream = self._raw_stream(device)
        with self._lock:
            if self._has_workspace:
                key = (device, stream, capture_of(stream) if self._capturing() else 0, *addresses)
            else:
                key = (device, *addresses)
            bound = self._bound.get(key) or self._bind_kept(key, device, addresses)
            try:
                bound.launch(stream)
            except CudaError as error:
                if error.code != INVALID_CONTEXT:
                    raise
                self._torch.cuda.set_device(device)
                bound.launch(stream)

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
        device = current().device_index

        def allocate(_name: str, nbytes: int, zero: bool) -> tuple[object, int]:
            return self._spaces.fresh(device, nbytes, zero)

        bound = self._bind(device, addresses, allocate)
        kept = (tuple(inputs), tuple(outputs))

        def launch(_keep: object = kept) -> None:
            bound.launch(current().cuda_stream)

        return launch

    def _bind_kept(self, key: tuple[int, ...], device: int, addresses: tuple[int, ...]) -> Bound:
        stream, capture = (key[1], key[2]) if self._has_workspace else (0, 0)
        bound = self._bind(device, addresses, self._spaces.allocator(device, stream, capture))
        if len(self._bound) >= _BINDINGS:  # the oldest: what it was launched with has been copied by the driver
            del self._bound[next(iter(self._bound))]
        self._bound[key] = bound
        return bound

    def _bind(self, device: int, addresses: Sequence[int], allocate: Allocate) -> Bound:
        if device not in self._programs:
            self._torch.cuda.set_device(device)  # a thread that has used no device yet has no context
            try:
                self._programs[device] = CudaProgram(self.artifact.files[CUBIN], self._launch)
            except CudaError as error:
                message = f"the artifact does not run on this device ({error}): tune on this machine"
                raise ForeignArtifact(message) from None
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
        raise ForeignArtifact("the artifact is for a CUDA device, and torch sees none on this machine")
    torch.cuda.current_stream().cuda_stream  # noqa: B018  makes the context that the driver calls use
    return torch


def check_arch(target: object, capability: tuple[int, int]) -> None:
    """ForeignArtifact unless a cubin for the target runs on the device (CUDA C++ programming guide, binary
    compatibility): sm_XYa on exactly X.Y; sm_XY, and sm_XYf of a family, on later minor versions of X too."""
    arch = str(target.get("arch", "")) if isinstance(target, dict) else ""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit():
        return
    major, minor = divmod(int(digits), 10)
    fits = capability == (major, minor) or (not arch.endswith("a") and capability[0] == major and capability[1] > minor)
    if not fits:
        message = f"the artifact is for {arch}, this device is sm_{capability[0]}{capability[1]}: tune on this machine"
        raise ForeignArtifact(message)


def _extents(workload: object) -> dict[str, int]:
    """The extents that launch formulas name: every integer of the workload."""
    assert isinstance(workload, dict)
    numbers = {name: int(v) for name, v in workload.items() if isinstance(v, int) and not isinstance(v, bool)}
    return {"batch": 1, "groups": 1, **numbers}
