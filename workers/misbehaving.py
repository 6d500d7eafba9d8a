"""Kernels that compute the right answer and store it wrongly: what the check is there to catch."""

import ctypes
from collections.abc import Callable
from typing import Any

from workers.cpu_workbench import Operands


class MisbehavingKernel:
    """`action`: write_nothing, write_half, accumulate (onto what the output held) or write_outside (and all of it)."""

    exact = True

    def __init__(self, action: str) -> None:
        self._store = _ACTIONS[action]

    def bind(self, operands: Operands) -> Callable[[], None]:
        def call() -> None:
            for output, right in zip(operands.outputs, operands.right.values(), strict=True):
                self._store(output, right.to(output.dtype))

        return call


def _nothing(output: Any, right: Any) -> None:
    """Leaves the output as it was."""


def _half(output: Any, right: Any) -> None:
    count = output.numel() // 2
    output.view(-1)[:count] = right.reshape(-1)[:count]


def _accumulate(output: Any, right: Any) -> None:
    output += right


def _outside(output: Any, right: Any) -> None:
    output.copy_(right)
    ctypes.memset(output.data_ptr() + output.nbytes, 0, 4)


_ACTIONS: dict[str, Callable[[Any, Any], None]] = {
    "write_nothing": _nothing,
    "write_half": _half,
    "accumulate": _accumulate,
    "write_outside": _outside,
}
