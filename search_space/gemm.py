"""GEMM: C[b] = epilogue(op(A[b]) @ op(B[b]) + bias)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from search_space import fields
from search_space.dtypes import DTYPES, canonical_dtype
from search_space.errors import InvalidField
from search_space.workload import Operand, Workload, check_addressable, register_op

EPILOGUES = ("none", "bias", "bias+gelu", "bias+relu", "bias+silu")
GROUPINGS = ("none", "contiguous", "masked")
SCALES = ("none", "tensor", "block")
SCALE_BLOCK = 128  # elements of k of A, and of k and n of B, that share a scale


@dataclass(frozen=True)
class GemmWorkload(Workload):
    """C[batch, m, n] = epilogue(A[batch, m, k] @ B[batch, k, n]).

    `trans_a`: A is stored [batch, k, m]; `trans_b`: B is stored [batch, n, k] (a PyTorch Linear's weight). Without a
    batch the tensors have two dimensions. `bias` is [n]; gelu is the exact one, x * Phi(x), as torch's default.
    `b_constant`: B is known ahead (weights), so packing it lies outside the measured time.
    `groups` > 1 with `grouping`: a mixture of experts, B is [groups, k, n] and m counts the rows of one group.
    contiguous: the rows of the groups stand one behind another, group g ends before row `offsets[g]` (int32, not
    decreasing, at most groups * m; groups may be empty). masked: group g has room for m rows, of which the first
    `counts[g]` are there. Rows of C that belong to no group are left as they were. `flops` counts m rows for every
    group.
    `scales`: how float8 operands are scaled: one per tensor, or per 1x128 of A and 128x128 of B (DeepSeek-V3,
    arXiv:2412.19437 section 3.3.2). The scales are float32 operands, to multiply with: `a_scale` [1] and `b_scale` [1]
    per tensor; per block a_scale [ceil(k / 128), rows of A] (rows innermost: a tile of rows reads 16 bytes and more at
    once) and b_scale [groups, ceil(n / 128), ceil(k / 128)], without the first dimension for a single B.
    """

    op: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    dtype_a: str
    dtype_b: str
    dtype_out: str
    batch: int = 1
    accumulate: str = "float32"
    trans_a: bool = False
    trans_b: bool = False
    epilogue: str = "none"
    b_constant: bool = False
    groups: int = 1
    grouping: str = "none"
    scales: str = "none"

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "GemmWorkload":
        """Raises InvalidField naming the field. `dtype` sets a and b; `dtype_out` follows it unless given."""
        fields.only(data, _KNOWN)
        common = data.get("dtype")
        dtype_a = canonical_dtype(data.get("dtype_a", common), "dtype_a" if "dtype_a" in data else "dtype")
        dtype_b = canonical_dtype(data.get("dtype_b", common), "dtype_b" if "dtype_b" in data else "dtype")
        follow = "bfloat16" if dtype_a == "float8_e4m3" else dtype_a
        workload = GemmWorkload(
            m=fields.integer(data, "m"),
            n=fields.integer(data, "n"),
            k=fields.integer(data, "k"),
            dtype_a=dtype_a,
            dtype_b=dtype_b,
            dtype_out=canonical_dtype(data.get("dtype_out", follow), "dtype_out"),
            batch=fields.integer(data, "batch", 1),
            accumulate=fields.choice(data, "accumulate", ("float32",), "float32"),
            trans_a=fields.boolean(data, "trans_a"),
            trans_b=fields.boolean(data, "trans_b"),
            epilogue=fields.choice(data, "epilogue", EPILOGUES, "none"),
            b_constant=fields.boolean(data, "b_constant"),
            groups=fields.integer(data, "groups", 1, high=65536),
            grouping=fields.choice(data, "grouping", GROUPINGS, "none"),
            scales=fields.choice(data, "scales", SCALES, "none"),
        )
        workload._check()
        return workload

    def _check(self) -> None:
        if (self.groups > 1) != (self.grouping != "none"):
            raise InvalidField("grouping", f"must be given together with groups > 1, got groups = {self.groups}")
        if self.groups > 1 and self.batch > 1:
            raise InvalidField("groups", "cannot be combined with batch > 1")
        if self.scales != "none" and "float8_e4m3" not in (self.dtype_a, self.dtype_b):
            raise InvalidField("scales", "only float8_e4m3 operands carry scales")
        if self.scales == "block" and self.batch > 1:
            raise InvalidField("scales", "block scales cannot be combined with batch > 1")
        try:
            check_addressable(self)
        except InvalidField as fault:  # an operand or the work as a whole: the extent to cut is the largest one
            largest = max(("m", "n", "k", "batch", "groups"), key=lambda name: int(getattr(self, name)))
            raise InvalidField(largest, fault.message) from None

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {"op": self.op}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING or value != f.default:
                out[f.name] = value
        return out

    def flops(self) -> int:
        return 2 * self.batch * self.groups * self.m * self.n * self.k

    def min_bytes(self) -> int:
        return self.footprint_bytes()

    def inputs(self) -> tuple[Operand, ...]:
        a = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b = (self.n, self.k) if self.trans_b else (self.k, self.n)
        many = self.batch * self.groups
        lead_a = (self.batch,) if self.batch > 1 else ()
        lead_b = (many,) if many > 1 else ()
        if self.groups > 1:
            a = (self.k, self.groups * self.m) if self.trans_a else (self.groups * self.m, self.k)
        operands = [_operand("a", (*lead_a, *a), self.dtype_a), _operand("b", (*lead_b, *b), self.dtype_b)]
        operands += self._scale_operands()
        if self.epilogue != "none":
            operands.append(_operand("bias", (self.n,), self.dtype_out))
        if self.grouping != "none":
            name = "offsets" if self.grouping == "contiguous" else "counts"
            operands.append(Operand(name, (self.groups,), "int32", 4))
        return tuple(operands)

    def _scale_operands(self) -> list[Operand]:
        if self.scales == "none":
            return []
        if self.scales == "tensor":
            return [_operand("a_scale", (1,), "float32"), _operand("b_scale", (1,), "float32")]
        blocks_n, blocks_k = (-(-extent // SCALE_BLOCK) for extent in (self.n, self.k))
        lead = (self.groups,) if self.groups > 1 else ()
        return [
            _operand("a_scale", (blocks_k, self.groups * self.m), "float32"),
            _operand("b_scale", (*lead, blocks_n, blocks_k), "float32"),
        ]

    def outputs(self) -> tuple[Operand, ...]:
        lead = (self.batch,) if self.batch > 1 else ()
        return (_operand("c", (*lead, self.groups * self.m, self.n), self.dtype_out),)


def _operand(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, dtype, DTYPES[dtype].itemsize)


_KNOWN = frozenset({"op", "dtype", *(f.name for f in dataclasses.fields(GemmWorkload))})

register_op("gemm", GemmWorkload.from_json)
