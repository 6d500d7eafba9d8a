"""Operands in a GPU's memory: copies that rotate, so that none is found in L2, each between canary bytes.

A kernel that strays a little damages a canary, one that writes its inputs makes a copy differ from the others; one that
strays far faults, which ends the process that owns the device.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from search_space.workload import Operand
from workers.inputs import torch_dtype

GUARD_BYTES = 64 << 10  # on each side of a copy: more than a row of any tile
_ALIGNMENT = 256  # of the data, as cudaMalloc gives it
_CANARY = 0xA5
_POISON = 0xFF  # every byte set is a NaN in float64, float32, float16, bfloat16 and float8_e4m3
_MOST_COPIES = 512
# How many times L2 the copies fill: what is evicted is not always the oldest line.
_L2_FACTOR = 4


def copies_wanted(footprint_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """Copies of a workload's operands that leave `_L2_FACTOR` times L2 behind, no more than half the memory holds."""
    wanted = max(2, math.ceil(_L2_FACTOR * l2_bytes / footprint_bytes))
    return max(1, min(wanted, _MOST_COPIES, free_bytes // 2 // footprint_bytes))


class Copies:
    """`count` copies of one operand."""

    def __init__(self, operand: Operand, count: int, device: str = "cuda") -> None:
        self._operand = operand
        padded = -(-operand.nbytes // _ALIGNMENT) * _ALIGNMENT
        stride = GUARD_BYTES + padded + GUARD_BYTES
        self._raw = torch.full((count, stride), _CANARY, dtype=torch.uint8, device=device)
        self._data = slice(GUARD_BYTES, GUARD_BYTES + operand.nbytes)

    def __len__(self) -> int:
        return int(self._raw.shape[0])

    def tensor(self, index: int) -> Any:
        flat = self._raw[index, self._data]
        return flat.view(torch_dtype(self._operand.dtype)).view(self._operand.shape)

    def fill(self, value: Any) -> None:
        """The same value in every copy."""
        for index in range(len(self)):
            self.tensor(index).copy_(value)

    def poison(self, index: int) -> None:
        self._raw[index, self._data].fill_(_POISON)

    def whole(self) -> Any:
        """A boolean on the device: no canary of any copy was written."""
        before, after = self._raw[:, : self._data.start], self._raw[:, self._data.stop :]
        return (before == _CANARY).all() & (after == _CANARY).all()

    def restore_guards(self) -> None:
        self._raw[:, : self._data.start] = _CANARY
        self._raw[:, self._data.stop :] = _CANARY

    def alike(self) -> Any:
        """A boolean on the device: every copy, guards and all, equals the last one."""
        words = self._raw.view(torch.int64)
        return (words[:-1] == words[-1:]).all()

    def restore(self) -> None:
        """Every copy as the last one is."""
        self._raw[:-1] = self._raw[-1:]


def damaged(outputs: Sequence[tuple[str, Copies]], inputs: Sequence[tuple[str, Copies]]) -> list[str]:
    """What a kernel wrote that it must not, mended at once. One wait for the device."""
    found = torch.stack([c.whole() for _, c in outputs] + [c.alike() for _, c in inputs]).tolist()
    said = []
    for (name, copies), fine in zip(outputs, found[: len(outputs)], strict=True):
        if not fine:
            copies.restore_guards()
            said.append(f"wrote outside the memory of operand {name}")
    for (name, copies), fine in zip(inputs, found[len(outputs) :], strict=True):
        if not fine:
            copies.restore()
            said.append(f"wrote to its input {name}")
    return said
