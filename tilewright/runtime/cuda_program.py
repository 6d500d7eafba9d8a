"""A cubin with its launch description: bound to addresses once, then one driver call a kernel.

The description (plain JSON, made by a sketch's `lower`) holds `workspace` (name -> {nbytes, zero}), and `kernels`, a
list of {symbol, grid, block, cluster, shared_bytes, dependent, arguments, parameters}: `arguments` says what each
parameter is (a pointer may have `align`, in bytes), `parameters` their order in the cubin. Numbers are formulas of the
workload's extents (`formula`).
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.runtime import cuda_driver as cuda
from tilewright.runtime.formula import evaluate

Allocate = Callable[[str, int, bool], tuple[object, int]]


class Bound:
    """Kernels with every argument fixed. `launch(stream)` may be captured in a CUDA graph; not thread-safe."""

    def __init__(self, steps: Sequence[tuple[Any, Any, Any]], keep: object) -> None:
        self._steps = [(config, ctypes.byref(config), function, arguments) for config, function, arguments in steps]
        self._keep = keep
        self._launch = cuda.driver().cuLaunchKernelEx

    def launch(self, stream: int) -> None:
        for config, reference, function, arguments in self._steps:
            config.stream = stream
            if code := self._launch(reference, function, arguments, None):
                cuda.check("cuLaunchKernelEx", code)


class CudaProgram:
    """Loads `cubin` into the current context. Raises CudaError when it cannot run on this device."""

    def __init__(self, cubin: bytes, launch: Mapping[str, Any]) -> None:
        self._description = launch
        self._module = cuda.Module(cubin)
        self._functions = {
            str(k["symbol"]): self._module.function(str(k["symbol"]), int(k["shared_bytes"])) for k in launch["kernels"]
        }

    def workspace_bytes(self, names: Mapping[str, int]) -> dict[str, tuple[int, bool]]:
        spaces = self._description.get("workspace", {})
        return {name: (evaluate(w["nbytes"], names), bool(w.get("zero"))) for name, w in spaces.items()}

    def bind(self, names: Mapping[str, int], addresses: Mapping[str, int], allocate: Allocate) -> Bound:
        """`names`: the extents; `addresses`: device address of each operand; `allocate(name, nbytes, zeroed)`
        gives (owner, address) of a workspace; bindings that share one must run after each other."""
        keep: list[object] = []
        known = dict(addresses)
        for name, (nbytes, zero) in self.workspace_bytes(names).items():
            owner, known[name] = allocate(name, nbytes, zero)
            keep.append(owner)
        steps = [self._step(kernel, names, known, keep) for kernel in self._description["kernels"]]
        return Bound(steps, keep)

    def active_clusters(self, names: Mapping[str, int]) -> list[int]:
        """How many clusters of each kernel run at once, as the driver says."""
        kernels = self._description["kernels"]
        return [cuda.max_active_clusters(self._functions[k["symbol"]], _config(k, names)) for k in kernels]

    def unload(self) -> None:
        self._module.unload()

    def _step(
        self, kernel: Mapping[str, Any], names: Mapping[str, int], addresses: Mapping[str, int], keep: list[object]
    ) -> tuple[Any, Any, Any]:
        values: list[int] = []
        for parameter in kernel["parameters"]:
            argument = kernel["arguments"][parameter]
            owner, at = _argument(argument, names, addresses)
            keep.append(owner)
            values.append(at)
        arguments = (ctypes.c_void_p * len(values))(*values)
        return _config(kernel, names), self._functions[kernel["symbol"]], arguments


def _config(kernel: Mapping[str, Any], names: Mapping[str, int]) -> cuda.LaunchConfig:
    return cuda.launch_config(
        evaluate(kernel["grid"], names),
        int(kernel["block"]),
        int(kernel["shared_bytes"]),
        int(kernel.get("cluster", 1)),
        bool(kernel.get("dependent")),
    )


def _argument(
    argument: Mapping[str, Any], names: Mapping[str, int], addresses: Mapping[str, int]
) -> tuple[object, int]:
    """(owner, host address of the value) as cuLaunchKernelEx wants it."""
    kind = argument["kind"]
    if kind == "int32":
        number = ctypes.c_int32(evaluate(argument["value"], names))
        return number, ctypes.addressof(number)
    address = addresses[argument["operand"]]
    if kind == "pointer":
        if address % int(argument.get("align", 1)):
            message = f"{argument['operand']}: must begin at a multiple of {argument['align']} bytes; call .clone()"
            raise ValueError(message)
        pointer = ctypes.c_uint64(address)
        return pointer, ctypes.addressof(pointer)
    if kind == "tensor_map":
        dims = [evaluate(d, names) for d in argument["dims"]]
        strides = [evaluate(s, names) for s in argument["strides"]]
        return cuda.tensor_map(argument["dtype"], address, dims, strides, argument["box"], argument["swizzle"])
    raise ValueError(f"unknown kind of kernel argument {kind!r}")
