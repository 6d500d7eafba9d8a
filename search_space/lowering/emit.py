"""Small words for writing TIR from Python control flow: every loop that Python runs is unrolled in the program.

A vector expression is written with a `lanes` count; with 1 lane it is a plain scalar. One vectorised access is one
register: wider ones are legalised badly by LLVM (a 48-lane loop ran 6 times slower than 3 x 16 lanes).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from search_space.workload import Operand

Expr = Any
Buffer = Any


def prim_func(name: str, body: Callable[[], None]) -> tirx.PrimFunc:
    """The function that `body` writes: it declares the parameters with `param`, then emits statements."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name(name)
            T.func_attr({"global_symbol": name, "tirx.noalias": True})
            body()
    return builder.get()


def param(operand: Operand) -> Buffer:
    """Declares the next parameter: a dense row-major tensor of the operand's shape."""
    return T.arg(operand.name, T.buffer(operand.shape, operand.dtype, layout=None))


def flat_view(buffer: Buffer, dtype: str, size: int) -> Buffer:
    """The memory of `buffer` as one dimension of `size` elements of `dtype`."""
    return T.decl_buffer((size,), dtype, data=buffer.data, layout=None)


def flat_params(*operands: Operand | None) -> tuple[Buffer | None, ...]:
    """Declares the parameters (None is left out), then a flat view of each, whose index arithmetic is ours."""
    shaped = [param(o) if o else None for o in operands]
    return tuple(
        flat_view(b, o.dtype, math.prod(o.shape)) if o else None for b, o in zip(shaped, operands, strict=True)
    )


def workspace(size: int, dtype: str = "float32") -> Buffer:
    """A heap buffer of `size` elements, private to the parallel task that it is allocated in."""
    return T.alloc_buffer((size,), dtype, layout=None)


def registers(size: int, dtype: str = "float32") -> Buffer:
    """A small buffer that LLVM keeps in registers as long as every index into it is a constant."""
    return T.alloc_buffer((size,), dtype, scope="local", layout=None)


def at(start: Expr, lanes: int) -> Expr:
    """The index of `lanes` consecutive elements from `start`."""
    return start if lanes == 1 else T.Ramp(start, 1, lanes)


def splat(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else T.Broadcast(value, lanes)


def constant(value: float, lanes: int) -> Expr:
    return splat(T.float32(value), lanes)


def vector_type(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def widen(value: Expr, dtype: str, lanes: int) -> Expr:
    """`value` of `dtype` as float32."""
    return value if dtype == "float32" else T.Cast(vector_type("float32", lanes), value)


def narrow(value: Expr, dtype: str, lanes: int) -> Expr:
    """float32 `value` rounded to `dtype` (to nearest, ties to even)."""
    return value if dtype == "float32" else T.Cast(vector_type(dtype, lanes), value)


def store(buffer: Buffer, value: Expr, *indices: Expr) -> None:
    T.buffer_store(buffer, value, list(indices))


@contextmanager
def loop(extent: Expr, parallel: bool = False) -> Iterator[Expr]:
    """A loop over [0, extent). A loop that can only run once is none: its variable is the constant 0."""
    if isinstance(extent, int) and extent == 1:
        yield tirx.IntImm("int32", 0)
        return
    with (T.parallel if parallel else T.serial)(0, extent) as index:
        yield index


@contextmanager
def when(condition: Expr | None) -> Iterator[None]:
    """Statements under a condition; None means always."""
    if condition is None:
        yield
        return
    with T.If(condition):
        with T.Then():
            yield


def each_vector(extent: int, lanes: int, body: Callable[[Expr, int], None]) -> None:
    """Covers [0, extent) with `body(start, lanes)`: the last vector is shifted back to end at the edge, so `body`
    must be idempotent. An extent below one vector is covered by scalars."""
    width = lanes if extent >= lanes else 1
    with loop(-(-extent // width)) as index:
        start = index * width
        body(T.Bind(T.min(start, extent - width)) if extent % width else start, width)


def tile_start(index: Expr, tile: int, extent: int) -> Expr:
    """Where tile `index` begins: the last one is shifted back so that it ends at the edge (extent >= tile).

    It computes a few outputs twice, to the same bits: no padding, no predicate, no masked store.
    """
    if extent % tile == 0:
        return index * tile
    return T.Bind(T.min(index * tile, extent - tile))


def count_here(block: Expr, per_block: int, total: int) -> Expr:
    """How many of `total` items lie in block number `block`; at most 0 for a block that begins past the end."""
    if total % per_block == 0:
        return per_block
    return T.Bind(T.min(per_block, total - block * per_block))
