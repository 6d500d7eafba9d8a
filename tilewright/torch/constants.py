"""Operands that a caller has promised to be constant, packed once for the kernels that want them so."""

import threading
from typing import Any

import torch

from tilewright.runtime.kernel import Kernel, Packed

_Place = tuple[str, str, int, tuple[int, ...], tuple[int, ...]]


class Constants:
    """Packed operands by (kernel, operand, address, shape, strides).

    The original is kept alive, so that its address cannot become another tensor's; one whose version has moved (written
    in place) is packed again. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packed: dict[_Place, tuple[torch.Tensor, int, Packed]] = {}

    def packed(self, kernel: Kernel, operand: str, value: torch.Tensor) -> Packed:
        place = (kernel.digest, operand, value.data_ptr(), tuple(value.shape), value.stride())
        version = 0 if value.is_inference() else value._version
        known = self._packed.get(place)
        if known is not None and known[1] == version:
            return known[2]
        with self._lock:
            packed = kernel.prepack(value, operand)
            self._packed[place] = (value, version, packed)
        return packed

    def clear(self) -> None:
        with self._lock:
            self._packed.clear()


CONSTANTS = Constants()


def with_packed(kernel: Kernel, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands` in the kernel's order, those that it wants packed ahead replaced."""
    wanted = kernel.prepacked
    if not wanted:
        return operands
    return tuple(
        CONSTANTS.packed(kernel, spec.name, value) if spec.name in wanted else value
        for spec, value in zip(kernel.inputs, operands)
    )
