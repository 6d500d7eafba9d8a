"""The tensors of a GEMM as a sketch sees them: float32 values at logical indices, whatever the layout and dtype."""

from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from search_space.gemm import GemmWorkload
from search_space.lowering.emit import Buffer, at, flat_params, narrow, registers, splat, store, widen
from search_space.lowering.polynomials import activation
from search_space.workload import Operand

Expr = Any


@dataclass(frozen=True)
class GemmOperands:
    """Flat views of ``main``'s parameters. `batch` (an index) comes first in every method.

    An operand may be vectorised along an axis whose stride is 1 (`b_stride_n == 1` and so on); a transpose of a
    matrix with one row or column is none.
    """

    workload: GemmWorkload
    a: Buffer
    b: Buffer
    bias: Buffer | None
    c: Buffer
    a_stride_m: int
    a_stride_k: int
    b_stride_k: int
    b_stride_n: int

    @staticmethod
    def declare(workload: GemmWorkload, packed_b: Operand | None = None) -> "GemmOperands":
        """Declares the parameters in the order of an artifact. `packed_b` stands in B's place where it is given."""
        w = workload
        a, b, *rest = w.inputs()
        buffers = flat_params(a, packed_b or b, rest[0] if rest else None, w.outputs()[0])
        return GemmOperands(
            w,
            *buffers,
            a_stride_m=1 if w.trans_a else w.k,
            a_stride_k=w.m if w.trans_a else 1,
            b_stride_k=1 if w.trans_b else w.n,
            b_stride_n=w.k if w.trans_b else 1,
        )

    @staticmethod
    def declare_b(workload: GemmWorkload, b: Operand, packed: Operand) -> tuple["GemmOperands", Buffer]:
        """The parameters of a packing function: B, then where the packed B goes (returned as a flat buffer)."""
        w = workload
        source, to = flat_params(b, packed)
        ops = GemmOperands(w, None, source, None, None, 0, 0, 1 if w.trans_b else w.n, w.k if w.trans_b else 1)
        return ops, to

    def a_index(self, batch: Expr, i: Expr, p: Expr) -> Expr:
        return batch * (self.workload.m * self.workload.k) + i * self.a_stride_m + p * self.a_stride_k

    def b_index(self, batch: Expr, p: Expr, j: Expr) -> Expr:
        return batch * (self.workload.k * self.workload.n) + p * self.b_stride_k + j * self.b_stride_n

    def a_at(self, batch: Expr, i: Expr, p: Expr) -> Expr:
        """A[i, p] as a float32 scalar."""
        return widen(self.a[self.a_index(batch, i, p)], self.workload.dtype_a, 1)

    def a_along_k(self, batch: Expr, i: Expr, p: Expr, lanes: int) -> Expr:
        """A[i, p : p + lanes] as float32; needs a_stride_k == 1."""
        return widen(self.a[at(self.a_index(batch, i, p), lanes)], self.workload.dtype_a, lanes)

    def a_along_m(self, batch: Expr, i: Expr, p: Expr, lanes: int) -> Expr:
        """A[i : i + lanes, p] as float32; needs a_stride_m == 1."""
        return widen(self.a[at(self.a_index(batch, i, p), lanes)], self.workload.dtype_a, lanes)

    def b_along_n(self, batch: Expr, p: Expr, j: Expr, lanes: int) -> Expr:
        """B[p, j : j + lanes] as float32; needs b_stride_n == 1."""
        return widen(self.b[at(self.b_index(batch, p, j), lanes)], self.workload.dtype_b, lanes)

    def b_along_k(self, batch: Expr, p: Expr, j: Expr, lanes: int) -> Expr:
        """B[p : p + lanes, j] as float32; needs b_stride_k == 1."""
        return widen(self.b[at(self.b_index(batch, p, j), lanes)], self.workload.dtype_b, lanes)

    def b_at(self, batch: Expr, p: Expr, j: Expr) -> Expr:
        """B[p, j] as a float32 scalar."""
        return widen(self.b[self.b_index(batch, p, j)], self.workload.dtype_b, 1)

    def write(self, batch: Expr, i: Expr, j: Expr, value: Expr, lanes: int) -> None:
        """C[i, j : j + lanes] = epilogue(value + bias)."""
        dtype = self.workload.dtype_out
        if self.bias is not None:
            # Through a register: TVM reads a bfloat16 inside a Bind (as an activation has) as an integer, silently.
            biased = registers(lanes)
            store(biased, value + widen(self.bias[at(j, lanes)], dtype, lanes), at(0, lanes))
            value = biased[at(0, lanes)]
        value = activation(self.workload.epilogue, value, lanes)
        index = batch * (self.workload.m * self.workload.n) + i * self.workload.n + j
        store(self.c, narrow(value, dtype, lanes), at(index, lanes))


def fma(accumulator: Buffer, slot: int, a: Expr, b: Expr, lanes: int) -> None:
    """accumulator[slot] += a * b, where `slot` counts vectors of `lanes` and the scalar `a` goes to every lane."""
    where = at(slot * lanes, lanes)
    store(accumulator, accumulator[where] + splat(a, lanes) * b, where)


def zero(accumulator: Buffer, slots: int, lanes: int) -> None:
    for slot in range(slots):
        store(accumulator, splat(T.float32(0.0), lanes), at(slot * lanes, lanes))
