"""Copies of A and B into the order in which a register tile reads them."""

from typing import Any

from search_space.cpu_tile_plan import TilePlan
from search_space.lowering.emit import Buffer, at, each_vector, loop, narrow, store, tile_start, workspace
from search_space.lowering.gemm_operands import GemmOperands

Expr = Any


def pack_b_panel(
    ops: GemmOperands, plan: TilePlan, to: Buffer, base: Expr, batch: Expr, j0: Expr, k0: Expr, rows: Expr, dtype: str
) -> None:
    """to[base + p * nr + j] = B[k0 + p, j0 + j] for p < rows, j < nr."""
    lanes, nr = plan.unit.lanes, plan.nr
    if ops.b_stride_n == 1:
        with loop(rows) as p:
            for v in range(plan.nv):
                value = ops.b_along_n(batch, k0 + p, j0 + v * lanes, lanes)
                store(to, narrow(value, dtype, lanes), at(base + p * nr + v * lanes, lanes))
        return
    # A few consecutive elements of one column of B at a time, so that each cache line is read once.
    whole = rows // lanes

    def copy(p: Expr, j: Expr) -> None:
        store(to, narrow(ops.b_at(batch, k0 + p, j0 + j), dtype, 1), base + p * nr + j)

    if not isinstance(rows, int) or whole:
        with loop(whole) as outer, loop(nr) as j:
            for inner in range(lanes):
                copy(outer * lanes + inner, j)
    if not isinstance(rows, int) or rows % lanes:
        with loop(rows % lanes) as inner, loop(nr) as j:
            copy(whole * lanes + inner, j)


def pack_b_whole(ops: GemmOperands, plan: TilePlan, to: Buffer, dtype: str) -> None:
    """B as [batch, n tile, k, nr], by all cores."""
    w = plan.workload
    with loop(w.batch * plan.n_tiles, parallel=True) as task:
        j0 = tile_start(task % plan.n_tiles, plan.nr, w.n)
        batch = task // plan.n_tiles
        pack_b_panel(ops, plan, to, task * (w.k * plan.nr), batch, j0, 0, w.k, dtype)


def pack_a_whole(ops: GemmOperands, plan: TilePlan, to: Buffer) -> None:
    """A as float32 [batch, m tile, k, mr], by all cores."""
    w = plan.workload
    with loop(w.batch * plan.m_tiles, parallel=True) as task:
        i0 = tile_start(task % plan.m_tiles, plan.mr, w.m)
        batch = task // plan.m_tiles

        def copy(start: Expr, width: int) -> None:
            for i in range(plan.mr):
                for u in range(width):
                    value = ops.a_at(batch, i0 + i, start + u)
                    store(to, value, (task * w.k + start + u) * plan.mr + i)

        each_vector(w.k, min(4, w.k), copy)


def copied_a_rows(ops: GemmOperands, lanes: int) -> Buffer:
    """A as float32 [batch, m, k], written by all cores before anything that follows."""
    w = ops.workload
    to = workspace(w.batch * w.m * w.k)
    with loop(w.batch * w.m, parallel=True) as row:

        def copy(p: Expr, width: int) -> None:
            batch, i = row // w.m, row % w.m
            value = ops.a_along_k(batch, i, p, width) if width > 1 else ops.a_at(batch, i, p)
            store(to, value, at(row * w.k + p, width))

        each_vector(w.k, lanes if ops.a_stride_k == 1 else 1, copy)
    return to
