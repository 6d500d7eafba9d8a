"""The bfloat16 GEMM on pairs of k: an int32 lane holds two bfloat16 values, one instruction multiplies and adds both.

TVM widens bfloat16 before it multiplies, so that the instruction is never chosen. It is reached through a function of
LLVM IR that is imported and inlined. Where the processor lacks it, the same function is written with shifts and fused
multiply-adds: the program is right everywhere, and fast where the instruction is.
"""

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from search_space.cpu_model import ceil_div
from search_space.cpu_tile_plan import TilePlan
from search_space.lowering.emit import (
    Buffer,
    at,
    count_here,
    flat_view,
    loop,
    prim_func,
    registers,
    splat,
    store,
    tile_start,
    vector_type,
    workspace,
)
from search_space.lowering.gemm_operands import GemmOperands, zero

Expr = Any
_NAME = "tilewright_dot_pairs"


def _instruction(lanes: int) -> str:
    floats, ints, halves = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    intrinsic = f"@llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    return f"""
declare {floats} {intrinsic}({floats}, {halves}, {halves})
define {floats} @{_NAME}({floats} %c, {ints} %a, {ints} %b) alwaysinline {{
  %x = bitcast {ints} %a to {halves}
  %y = bitcast {ints} %b to {halves}
  %r = call {floats} {intrinsic}({floats} %c, {halves} %x, {halves} %y)
  ret {floats} %r
}}
"""


def _shifts(lanes: int) -> str:
    """A bfloat16 is the upper half of a float32: the low one of a pair is shifted up, the high one masked."""
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    fma = f"@llvm.fma.v{lanes}f32"
    up, mask = (f"<{', '.join([f'i32 {v}'] * lanes)}>" for v in (16, -65536))
    widened = "\n".join(
        f"""  %{v}l = shl {ints} %{v}, {up}
  %{v}h = and {ints} %{v}, {mask}
  %{v}0 = bitcast {ints} %{v}l to {floats}
  %{v}1 = bitcast {ints} %{v}h to {floats}"""
        for v in "ab"
    )
    return f"""
declare {floats} {fma}({floats}, {floats}, {floats})
define {floats} @{_NAME}({floats} %c, {ints} %a, {ints} %b) alwaysinline {{
{widened}
  %s = call {floats} {fma}({floats} %a0, {floats} %b0, {floats} %c)
  %r = call {floats} {fma}({floats} %a1, {floats} %b1, {floats} %s)
  ret {floats} %r
}}
"""


def pair_tiled(plan: TilePlan, native: bool) -> tirx.PrimFunc:
    """PrimFunc ``main``; `native`: the processor has AVX512_BF16."""
    w, lanes = plan.workload, plan.unit.lanes
    pairs = ceil_div(w.k, 2)

    def body() -> None:
        ops = GemmOperands.declare(w)
        a_bits = flat_view(ops.a, "uint16", w.batch * w.m * w.k)
        b_bits = flat_view(ops.b, "uint16", w.batch * w.k * w.n)
        a_packed = workspace(w.batch * plan.m_tiles * pairs * plan.mr, "int32")
        with T.attr(0, "pragma_import_llvm", _instruction(lanes) if native else _shifts(lanes)):
            with loop(w.batch * plan.m_tiles, parallel=True) as tile:
                batch, i0 = tile // plan.m_tiles, tile_start(tile % plan.m_tiles, plan.mr, w.m)

                def copy(p: Expr, halves: int) -> None:
                    for i in range(plan.mr):
                        values = [a_bits[ops.a_index(batch, i0 + i, 2 * p + h)] for h in range(halves)]
                        store(a_packed, _pair(values, 1), (tile * pairs + p) * plan.mr + i)

                _each_pair(w.k, copy)
            with loop(plan.grains, parallel=True) as task:
                _task(plan, ops, a_packed, b_bits, task)

    return prim_func("main", body)


def _pair(halves: list[Expr], lanes: int) -> Expr:
    """int32 with the first half below and the second above; a last pair of one half has zeros above."""
    wide = vector_type("int32", lanes)
    low = T.Cast(wide, halves[0])
    if len(halves) == 1:
        return low
    return T.bitwise_or(low, T.shift_left(T.Cast(wide, halves[1]), splat(tirx.IntImm("int32", 16), lanes)))


def _each_pair(k: int, body: Any) -> None:
    if k // 2:
        with loop(k // 2) as p:
            body(p, 2)
    if k % 2:
        body(k // 2, 1)


def _task(plan: TilePlan, ops: GemmOperands, a_packed: Buffer, b_bits: Buffer, index: Expr) -> None:
    w, lanes, nr = plan.workload, plan.unit.lanes, plan.nr
    pairs = ceil_div(w.k, 2)
    m_chunk, rest = T.Bind(index % plan.m_chunks), index // plan.m_chunks
    n_block, batch = T.Bind(rest % plan.n_blocks), T.Bind(rest // plan.n_blocks)
    panel = workspace(plan.nb * pairs * nr, "int32")
    n_here = count_here(n_block, plan.nb, plan.n_tiles)
    m_here = count_here(m_chunk, plan.tiles_per_chunk, plan.m_tiles)
    width = lanes if ops.b_stride_n == 1 else 1
    with loop(n_here) as jt:
        j0 = tile_start(n_block * plan.nb + jt, nr, w.n)

        def copy(p: Expr, halves: int) -> None:
            for j in range(0, nr, width):
                values = [b_bits[at(ops.b_index(batch, 2 * p + h, j0 + j), width)] for h in range(halves)]
                store(panel, _pair(values, width), at((jt * pairs + p) * nr + j, width))

        _each_pair(w.k, copy)

    def tile(t: Expr, jt: Expr) -> None:
        m_tile = T.Bind(m_chunk * plan.tiles_per_chunk + t)
        i0 = tile_start(m_tile, plan.mr, w.m)
        j0 = tile_start(n_block * plan.nb + jt, nr, w.n)
        acc = registers(plan.mr * nr)
        zero(acc, plan.mr * plan.nv, lanes)

        def step(p: Expr) -> None:
            for i in range(plan.mr):
                a = splat(a_packed[((batch * plan.m_tiles + m_tile) * pairs + p) * plan.mr + i], lanes)
                for v in range(plan.nv):
                    slot = at((i * plan.nv + v) * lanes, lanes)
                    b = panel[at((jt * pairs + p) * nr + v * lanes, lanes)]
                    store(acc, T.call_extern(vector_type("float32", lanes), _NAME, acc[slot], a, b), slot)

        unroll = min(plan.ku, pairs)
        with loop(pairs // unroll) as outer:
            for u in range(unroll):
                step(outer * unroll + u)
        for u in range(pairs % unroll):
            step(pairs - pairs % unroll + u)
        for i in range(plan.mr):
            for v in range(plan.nv):
                value = acc[at((i * plan.nv + v) * lanes, lanes)]
                ops.write(batch, i0 + i, j0 + v * lanes, value, lanes)

    outer, inner = (m_here, n_here) if plan.n_inner else (n_here, m_here)
    with loop(outer) as x, loop(inner) as y:
        tile(*((x, y) if plan.n_inner else (y, x)))
