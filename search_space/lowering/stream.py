"""The GEMM that streams B [k, n] once: blocks of kb rows, the sums of a task kept in a private buffer."""

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from search_space.cpu_stream_plan import StreamPlan
from search_space.lowering.emit import (
    Buffer,
    at,
    constant,
    count_here,
    loop,
    prim_func,
    registers,
    store,
    tile_start,
    workspace,
)
from search_space.lowering.gemm_operands import GemmOperands
from search_space.lowering.packing import copied_a_rows
from search_space.lowering.register_tile import multiply

Expr = Any


def stream(plan: StreamPlan) -> tirx.PrimFunc:
    """PrimFunc ``main`` for a plan that breaks no constraint."""

    def body() -> None:
        ops = GemmOperands.declare(plan.workload)
        rows = copied_a_rows(ops, plan.unit.lanes) if plan.copy_a else None
        with loop(plan.grains, parallel=True) as task:
            _task(plan, ops, rows, task)

    return prim_func("main", body)


def _task(plan: StreamPlan, ops: GemmOperands, rows: Buffer | None, index: Expr) -> None:
    w, lanes = plan.workload, plan.unit.lanes
    chunk, batch = T.Bind(index % plan.n_chunks), T.Bind(index // plan.n_chunks)
    sums = workspace(plan.m_tiles * plan.tiles_per_chunk * plan.mr * plan.nr)
    tiles = count_here(chunk, plan.tiles_per_chunk, plan.n_tiles)

    def place(jt: Expr, t: Expr, slot: int) -> Expr:
        return at(((jt * plan.m_tiles + t) * (plan.mr * plan.nv) + slot) * lanes, lanes)

    def each_tile(body: Any) -> None:
        with loop(tiles) as jt:
            j0 = tile_start(chunk * plan.tiles_per_chunk + jt, plan.nr, w.n)
            with loop(plan.m_tiles) as t:
                body(jt, t, tile_start(t, plan.mr, w.m), j0)

    def clear(jt: Expr, t: Expr, i0: Expr, j0: Expr) -> None:
        for slot in range(plan.mr * plan.nv):
            store(sums, constant(0.0, lanes), place(jt, t, slot))

    def block(k0: Expr, length: int) -> None:
        def a(i0: Expr, i: int, p: Expr) -> Expr:
            if rows is None:
                return ops.a_at(batch, i0 + i, k0 + p)
            return rows[(batch * w.m + i0 + i) * w.k + k0 + p]

        def add(jt: Expr, t: Expr, i0: Expr, j0: Expr) -> None:
            acc = registers(plan.mr * plan.nr)
            for slot in range(plan.mr * plan.nv):
                store(acc, sums[place(jt, t, slot)], at(slot * lanes, lanes))
            multiply(
                acc,
                lambda i, p: a(i0, i, p),
                lambda p, v: ops.b_along_n(batch, k0 + p, j0 + v * lanes, lanes),
                (plan.mr, plan.nv, lanes),
                length,
                min(plan.ku, length),
            )
            for slot in range(plan.mr * plan.nv):
                store(sums, acc[at(slot * lanes, lanes)], place(jt, t, slot))

        each_tile(add)

    def write(jt: Expr, t: Expr, i0: Expr, j0: Expr) -> None:
        for i in range(plan.mr):
            for v in range(plan.nv):
                ops.write(batch, i0 + i, j0 + v * lanes, sums[place(jt, t, i * plan.nv + v)], lanes)

    each_tile(clear)
    with loop(w.k // plan.kb) as k_block:
        block(k_block * plan.kb, plan.kb)
    if w.k % plan.kb:
        block(w.k - w.k % plan.kb, w.k % plan.kb)
    each_tile(write)
