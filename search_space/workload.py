"""The noun every room shares: what is to be computed."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from search_space.errors import InvalidField
from search_space.fields import INT64_MAX


@dataclass(frozen=True)
class Operand:
    """One tensor of a workload, dense and row-major: `shape` outermost first, `dtype` canonical."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def nbytes(self) -> int:
        size = self.itemsize
        for extent in self.shape:
            size *= extent
        return size


class Workload(ABC):
    """An operator with its shape, dtypes and flags: immutable, hashable, JSON-able.

    The canonical JSON leaves out fields that hold their default, so that a field added later changes no key.
    """

    op: ClassVar[str]

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Canonical JSON: `op` and every field that differs from its default, dtypes by canonical name."""

    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of the mathematical result (a multiply-add counts 2)."""

    @abstractmethod
    def min_bytes(self) -> int:
        """The fewest bytes that must cross device memory: each input read once, each output written once."""

    @abstractmethod
    def inputs(self) -> tuple[Operand, ...]:
        """Input operands in the order in which an artifact takes them."""

    @abstractmethod
    def outputs(self) -> tuple[Operand, ...]:
        """Output operands, taken by an artifact after the inputs."""

    @property
    def key(self) -> str:
        """Hash of the canonical JSON: 16 hex digits of SHA-256."""
        return hashlib.sha256(canonical_bytes(self.to_json())).hexdigest()[:16]

    def footprint_bytes(self) -> int:
        """Bytes of all operands together."""
        return sum(o.nbytes for o in (*self.inputs(), *self.outputs()))


def canonical_bytes(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_addressable(workload: Workload) -> None:
    """InvalidField when an operand's byte offsets, or the FLOP count, do not fit a signed 64-bit integer."""
    for operand in (*workload.inputs(), *workload.outputs()):
        if operand.nbytes > INT64_MAX:
            raise InvalidField(operand.name, f"{operand.name} of shape {list(operand.shape)} is beyond int64 bytes")
    if workload.flops() > INT64_MAX:
        raise InvalidField("", "the work does not fit a 64-bit count of operations")


Parser = Callable[[Mapping[str, object]], Workload]
_PARSERS: dict[str, Parser] = {}


def register_op(op: str, parser: Parser) -> None:
    """Make `op` known to parse_workload; called where a workload class is defined."""
    _PARSERS[op] = parser


def known_ops() -> tuple[str, ...]:
    return tuple(sorted(_PARSERS))


def parse_workload(data: object) -> Workload:
    """The workload that `data` (a JSON object with `op`) describes; InvalidField naming the field otherwise."""
    if not isinstance(data, Mapping):
        raise InvalidField("", f"must be an object, not {type(data).__name__}")
    op = data.get("op")
    if not isinstance(op, str) or op not in _PARSERS:
        raise InvalidField("op", f"must be one of {', '.join(known_ops())}, got {op!r}", known_ops())
    return _PARSERS[op](data)
