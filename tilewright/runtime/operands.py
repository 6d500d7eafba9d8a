"""The tensors a kernel takes: checked once per call, by name, then handed over as addresses."""

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.runtime.artifact import damaged

_NUMPY = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "u2",
    "float8_e4m3": "u1",
    "int32": "i4",
}
_TORCH = {"float8_e4m3": "float8_e4m3fn"}


@dataclass(frozen=True)
class OperandSpec:
    """One operand: dense, row-major, `shape` outermost first, `dtype` canonical."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @functools.cached_property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_NUMPY[self.dtype]).itemsize

    @functools.cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """bfloat16 and float8, which numpy lacks, are uint16 and uint8 bit patterns."""
        return np.dtype(_NUMPY[self.dtype])

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "OperandSpec":
        shape = data["shape"]
        if not isinstance(shape, list) or data["dtype"] not in _NUMPY:
            raise damaged(f"operand {data.get('name')}")
        return OperandSpec(str(data["name"]), tuple(int(x) for x in shape), str(data["dtype"]))


def torch_module() -> ModuleType | None:
    """torch, where the process has loaded it already."""
    return sys.modules.get("torch")


def torch_dtype(dtype: str) -> Any:
    torch = torch_module()
    return None if torch is None else getattr(torch, _TORCH.get(dtype, dtype))


class Checker:
    """Address of one operand's tensor, after all that could be wrong with it was looked at.

    Raises TypeError for what is no tensor or has another dtype, ValueError for shape, layout or device.
    """

    def __init__(self, spec: OperandSpec, device: str = "cpu") -> None:
        self.spec = spec
        self.device = device
        self._torch_dtype: Any = None

    def __call__(self, value: Any) -> int:
        torch = torch_module()
        if torch is not None and isinstance(value, torch.Tensor):
            if self._torch_dtype is None:
                self._torch_dtype = torch_dtype(self.spec.dtype)
            if (
                value.dtype is not self._torch_dtype
                or value.shape != self.spec.shape
                or not value.is_contiguous()
                or value.device.type != self.device
                or (value.requires_grad and torch.is_grad_enabled())
            ):
                self._refuse_torch(value)
            return int(value.data_ptr())
        if isinstance(value, np.ndarray) and self.device == "cpu":
            return self._numpy(value)
        raise TypeError(f"{self.spec.name}: expected a {self.device} tensor, got {type(value).__name__}")

    def _numpy(self, value: "np.ndarray[Any, Any]") -> int:
        spec = self.spec
        if value.dtype != spec.numpy_dtype and value.dtype.name not in (spec.dtype, spec.dtype + "fn"):
            stand_in = spec.numpy_dtype.name != spec.dtype
            hint = f" (ml_dtypes, or bit patterns in {spec.numpy_dtype.name})" if stand_in else ""
            raise TypeError(f"{spec.name}: expected dtype {spec.dtype}{hint}, got {value.dtype.name}")
        if value.shape != spec.shape:
            raise self._shape(value.shape)
        if not value.flags.c_contiguous:
            raise ValueError(f"{spec.name}: must be contiguous (row-major); use numpy.ascontiguousarray")
        return int(value.__array_interface__["data"][0])

    def _refuse_torch(self, value: Any) -> None:
        spec = self.spec
        if value.device.type != self.device:
            raise ValueError(f"{spec.name}: is on {value.device}, the kernel runs on {self.device}")
        if value.dtype is not self._torch_dtype:
            raise TypeError(f"{spec.name}: expected dtype {spec.dtype}, got {str(value.dtype).removeprefix('torch.')}")
        if tuple(value.shape) != spec.shape:
            raise self._shape(tuple(value.shape))
        if not value.is_contiguous():
            raise ValueError(f"{spec.name}: must be contiguous (row-major); call .contiguous()")
        raise ValueError(f"{spec.name}: requires grad, and a tuned kernel has no backward: use torch.no_grad()")

    def _shape(self, got: tuple[int, ...]) -> ValueError:
        return ValueError(f"{self.spec.name}: expected shape {list(self.spec.shape)}, got {list(got)}")


class Addresses:
    """Addresses of a kernel's tensors in calling order. The common case, contiguous torch tensors of the right dtype
    and shape, is one pass without a call per operand; everything else goes through `checks`, one for each operand.
    """

    def __init__(self, specs: Sequence[OperandSpec], checks: Sequence[Callable[[Any], int]]) -> None:
        self._specs = specs
        self._checks = checks
        self._tensor: Any = ()
        self._plan: list[tuple[Any, Any, Callable[[Any], int]]] = [(None, None, c) for c in checks]

    def __call__(self, values: Sequence[Any]) -> list[int]:
        """`values` has one entry for each operand."""
        torch = torch_module()
        if torch is None:
            return [check(value) for check, value in zip(self._checks, values)]
        if self._tensor == ():
            self._meet(torch)
        tensor, grad = self._tensor, torch.is_grad_enabled()
        found = []
        for value, (dtype, shape, check) in zip(values, self._plan):
            if (
                isinstance(value, tensor)
                and value.dtype is dtype
                and value.shape == shape
                and value.is_contiguous()
                and value.is_cpu
                and not (grad and value.requires_grad)
            ):
                found.append(value.data_ptr())
            else:
                found.append(check(value))
        return found

    def _meet(self, torch: Any) -> None:
        """torch was loaded since: its types are known from now on."""
        self._plan = [self._fast(torch, spec, check) for spec, check in zip(self._specs, self._checks)]
        self._tensor = torch.Tensor

    def make(self, like: object) -> tuple[tuple[Any, ...], list[int]]:
        """Empty tensors for these operands, and their addresses: torch's beside a torch input, else numpy arrays."""
        torch = torch_module()
        if torch is not None and self._tensor == ():
            self._meet(torch)
        if torch is not None and isinstance(like, self._tensor):
            made = tuple([torch.empty(shape, dtype=dtype) for dtype, shape, _ in self._plan])
            return made, [t.data_ptr() for t in made]
        arrays = tuple([np.empty(s.shape, s.numpy_dtype) for s in self._specs])
        return arrays, [check(x) for check, x in zip(self._checks, arrays)]

    @staticmethod
    def _fast(torch: Any, spec: OperandSpec, check: Callable[[Any], int]) -> tuple[Any, Any, Callable[[Any], int]]:
        """An operand that is no plain tensor (packed ahead) has a dtype that nothing matches."""
        return (torch_dtype(spec.dtype) if isinstance(check, Checker) else None, torch.Size(spec.shape), check)
