"""The GEMM with C held in registers, tile by tile, for every way of packing that a TilePlan can name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from search_space.cpu_tile_plan import TilePlan
from search_space.lowering.emit import (
    Buffer,
    at,
    count_here,
    each_vector,
    loop,
    prim_func,
    registers,
    store,
    tile_start,
    when,
    widen,
    workspace,
)
from search_space.lowering.gemm_operands import GemmOperands, fma, zero
from search_space.lowering.packing import pack_a_whole, pack_b_panel, pack_b_whole
from search_space.workload import Operand

Expr = Any


def multiply(
    acc: Buffer,
    a: Callable[[int, Expr], Expr],
    b: Callable[[Expr, int], Expr],
    shape: tuple[int, int, int],
    rows: Expr,
    unroll: int,
) -> None:
    """acc[i, v] += a(i, p) * b(p, v) over p < rows, for a tile of `shape` (rows, vectors, lanes) held in registers."""
    mr, nv, lanes = shape

    def step(p: Expr) -> None:
        # The shorter side is the inner loop: its operand vectors are the ones that stay in registers.
        pairs = [(i, v) for i in range(mr) for v in range(nv)] if nv <= mr else None
        for i, v in pairs or [(i, v) for v in range(nv) for i in range(mr)]:
            fma(acc, i * nv + v, a(i, p), b(p, v), lanes)

    with loop(rows // unroll) as outer:
        for u in range(unroll):
            step(outer * unroll + u)
    # Emitted only where it can happen: a remainder loop that may run once makes LLVM keep the tile on the stack.
    if isinstance(rows, int):
        for u in range(rows % unroll):
            step(rows - rows % unroll + u)


@dataclass(frozen=True)
class _Buffers:
    """`a`, `b`: packed operands; `partial`: sums over the k blocks so far (by task, or of all blocks when split)."""

    ops: GemmOperands
    a: Buffer | None
    b: Buffer | None
    partial: Buffer | None


@dataclass(frozen=True)
class _Task:
    batch: Expr
    n_block: Expr
    m_chunk: Expr


def register_tiled(plan: TilePlan) -> tirx.PrimFunc:
    """PrimFunc ``main`` for a plan that breaks no constraint."""

    def body() -> None:
        packed = Operand("b_packed", (plan.packed_b_elements,), plan.packed_dtype, 0)
        ops = GemmOperands.declare(plan.workload, packed if plan.pack_b == "ahead" else None)
        a_buffer, b_buffer, partial = None, ops.b if plan.pack_b == "ahead" else None, None
        if plan.pack_a != "none":
            a_buffer = workspace(plan.packed_a_elements)
            pack_a_whole(ops, plan, a_buffer)
        if plan.pack_b == "shared":
            b_buffer = workspace(plan.packed_b_elements)
            pack_b_whole(ops, plan, b_buffer, "float32")
        w = plan.workload
        if plan.split_k:
            partial = workspace(plan.k_blocks * w.batch * w.m * w.n)
        with loop(plan.grains, parallel=True) as task:
            _task(plan, _Buffers(ops, a_buffer, b_buffer, partial), task)
        if partial is not None:
            _add_partials(plan, ops, partial)

    return prim_func("main", body)


def packing_function(plan: TilePlan) -> tirx.PrimFunc:
    """PrimFunc ``pack_b``: takes B as the workload has it and writes what ``main`` takes when B is packed ahead."""

    def body() -> None:
        w = plan.workload
        operand = w.inputs()[1]
        packed = Operand("b_packed", (plan.packed_b_elements,), plan.packed_dtype, 0)
        ops, to = GemmOperands.declare_b(w, operand, packed)
        pack_b_whole(ops, plan, to, plan.packed_dtype)

    return prim_func("pack_b", body)


def _task(plan: TilePlan, buffers: _Buffers, index: Expr) -> None:
    m_chunk, rest = index % plan.m_chunks, index // plan.m_chunks
    n_block, rest = rest % plan.n_blocks, rest // plan.n_blocks
    if plan.split_k:
        task = _Task(T.Bind(rest // plan.k_blocks), T.Bind(n_block), T.Bind(m_chunk))
        _k_block(plan, buffers, task, T.Bind(rest % plan.k_blocks))
        return
    task = _Task(T.Bind(rest), T.Bind(n_block), T.Bind(m_chunk))
    if plan.k_blocks > 1:
        sums = workspace(plan.tiles_per_chunk * plan.nb * plan.mr * plan.nr)
        buffers = _Buffers(buffers.ops, buffers.a, buffers.b, sums)
    panel = workspace(plan.nb * plan.kc * plan.nr) if plan.pack_b == "block" else None
    with loop(plan.k_blocks) as k_block:
        _k_block(plan, buffers, task, k_block, panel)


def _k_block(plan: TilePlan, buffers: _Buffers, task: _Task, k_block: Expr, panel: Buffer | None = None) -> None:
    w = plan.workload
    k0 = k_block * plan.kc
    rows = w.k if plan.k_blocks == 1 else count_here(k_block, plan.kc, w.k)
    n_here = count_here(task.n_block, plan.nb, plan.n_tiles)
    m_here = count_here(task.m_chunk, plan.tiles_per_chunk, plan.m_tiles)
    if plan.pack_b == "block":
        panel = workspace(plan.nb * plan.kc * plan.nr) if panel is None else panel
        with loop(n_here) as jt:
            j0 = tile_start(task.n_block * plan.nb + jt, plan.nr, w.n)
            base = jt * (plan.kc * plan.nr)
            pack_b_panel(buffers.ops, plan, panel, base, task.batch, j0, k0, rows, "float32")

    def tile(t: Expr, jt: Expr) -> None:
        _tile(plan, buffers, task, (k_block, k0, rows), (t, jt), panel)

    if plan.n_inner:
        with loop(m_here) as t, loop(n_here) as jt:
            tile(t, jt)
    else:
        with loop(n_here) as jt, loop(m_here) as t:
            tile(t, jt)


def _tile(
    plan: TilePlan,
    buffers: _Buffers,
    task: _Task,
    k_range: tuple[Expr, Expr, Expr],
    where: tuple[Expr, Expr],
    panel: Buffer | None,
) -> None:
    """One register tile over one k block; `where` counts tiles within the task."""
    w, ops, lanes = plan.workload, buffers.ops, plan.unit.lanes
    (k_block, k0, rows), (t, jt) = k_range, where
    m_tile = T.Bind(task.m_chunk * plan.tiles_per_chunk + t)
    n_tile = T.Bind(task.n_block * plan.nb + jt)
    i0, j0 = tile_start(m_tile, plan.mr, w.m), tile_start(n_tile, plan.nr, w.n)

    def a(i: int, p: Expr) -> Expr:
        if buffers.a is None:
            return ops.a_at(task.batch, i0 + i, k0 + p)
        return buffers.a[((task.batch * plan.m_tiles + m_tile) * w.k + k0 + p) * plan.mr + i]

    def b(p: Expr, v: int) -> Expr:
        if panel is not None:
            return panel[at((jt * plan.kc + p) * plan.nr + v * lanes, lanes)]
        if buffers.b is None:
            return ops.b_along_n(task.batch, k0 + p, j0 + v * lanes, lanes)
        base = (task.batch * plan.n_tiles + n_tile) * w.k + k0 + p
        return widen(buffers.b[at(base * plan.nr + v * lanes, lanes)], plan.b_dtype, lanes)

    acc = registers(plan.mr * plan.nr)
    zero(acc, plan.mr * plan.nv, lanes)
    multiply(acc, a, b, (plan.mr, plan.nv, lanes), rows, plan.ku)
    _finish(plan, buffers, task, k_block, (t, jt), (i0, j0), acc)


def _finish(
    plan: TilePlan,
    buffers: _Buffers,
    task: _Task,
    k_block: Expr,
    where: tuple[Expr, Expr],
    corner: tuple[Expr, Expr],
    acc: Buffer,
) -> None:
    """The tile goes to C when its sum is complete, else to the partial sums."""
    w, lanes, sums = plan.workload, plan.unit.lanes, buffers.partial
    slots = [(i, v) for i in range(plan.mr) for v in range(plan.nv)]

    def value(i: int, v: int) -> Expr:
        return acc[at((i * plan.nv + v) * lanes, lanes)]

    def write() -> None:
        for i, v in slots:
            buffers.ops.write(task.batch, corner[0] + i, corner[1] + v * lanes, value(i, v), lanes)

    if sums is None:
        write()
        return
    if plan.split_k:
        base = (k_block * w.batch + task.batch) * w.m
        for i, v in slots:
            store(sums, value(i, v), at((base + corner[0] + i) * w.n + corner[1] + v * lanes, lanes))
        return
    base = (where[0] * plan.nb + where[1]) * (plan.mr * plan.nr)

    def saved(i: int, v: int) -> Expr:
        return at(base + (i * plan.nv + v) * lanes, lanes)

    with when(k_block > 0):
        for i, v in slots:
            store(acc, value(i, v) + sums[saved(i, v)], at((i * plan.nv + v) * lanes, lanes))
    with when(k_block == plan.k_blocks - 1):
        write()
    with when(k_block < plan.k_blocks - 1):
        for i, v in slots:
            store(sums, value(i, v), saved(i, v))


def _add_partials(plan: TilePlan, ops: GemmOperands, partial: Buffer) -> None:
    """C = epilogue(sum of the k blocks), by all cores; rows are the grains."""
    w = plan.workload
    with loop(w.batch * w.m, parallel=True) as row:

        def add(j: Expr, lanes: int) -> None:
            total = None
            for block in range(plan.k_blocks):
                term = partial[at((row + block * w.batch * w.m) * w.n + j, lanes)]
                total = term if total is None else total + term
            ops.write(row // w.m, row % w.m, j, total, lanes)

        each_vector(w.n, plan.unit.lanes, add)
