"""The GEMM whose vectors run along k: mr x nr vector sums in registers, added across lanes at the end."""

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from search_space.cpu_dot_plan import DotPlan
from search_space.lowering.emit import (
    Buffer,
    at,
    constant,
    count_here,
    loop,
    prim_func,
    registers,
    splat,
    store,
    tile_start,
    when,
    workspace,
)
from search_space.lowering.gemm_operands import GemmOperands, zero
from search_space.lowering.packing import copied_a_rows

Expr = Any


def across_lanes(vector: Expr, lanes: int) -> Expr:
    """The sum of a vector's lanes, by halves."""
    while lanes > 1:
        lanes //= 2
        low = T.Shuffle([vector], list(range(lanes)))
        high = T.Shuffle([vector], list(range(lanes, 2 * lanes)))
        vector = T.Bind(low + high)
    return vector


def dot_product(plan: DotPlan) -> tirx.PrimFunc:
    """PrimFunc ``main`` for a plan that breaks no constraint."""

    def body() -> None:
        ops = GemmOperands.declare(plan.workload)
        rows = copied_a_rows(ops, plan.unit.lanes) if plan.copy_a else None
        with loop(plan.grains, parallel=True) as task:
            _task(plan, ops, rows, task)

    return prim_func("main", body)


def _task(plan: DotPlan, ops: GemmOperands, rows: Buffer | None, index: Expr) -> None:
    w = plan.workload
    m_chunk = T.Bind(index % plan.m_chunks)
    n_chunk = T.Bind(index // plan.m_chunks % plan.n_chunks)
    batch = T.Bind(index // (plan.m_chunks * plan.n_chunks))
    sums = None
    if plan.k_blocks > 1:
        sums = workspace(plan.m_tiles_per_chunk * plan.mr * plan.nr * plan.unit.lanes)
    m_here = count_here(m_chunk, plan.m_tiles_per_chunk, plan.m_tiles)
    with loop(count_here(n_chunk, plan.n_tiles_per_chunk, plan.n_tiles)) as jt:
        j0 = tile_start(n_chunk * plan.n_tiles_per_chunk + jt, plan.nr, w.n)

        def block(k0: Expr, length: int, resume: bool | Expr, last: bool) -> None:
            with loop(m_here) as t:
                i0 = tile_start(m_chunk * plan.m_tiles_per_chunk + t, plan.mr, w.m)
                _tile(plan, ops, rows, (batch, i0, j0, t), k0, length, sums, resume, last)

        whole = plan.k_blocks - 1
        if whole:
            with loop(whole) as k_block:
                block(k_block * plan.kc, plan.kc, k_block > 0, False)
        block(whole * plan.kc, w.k - whole * plan.kc, whole > 0, True)


def _tile(
    plan: DotPlan,
    ops: GemmOperands,
    rows: Buffer | None,
    where: tuple[Expr, Expr, Expr, Expr],
    k0: Expr,
    length: int,
    sums: Buffer | None,
    resume: bool | Expr,
    last: bool,
) -> None:
    w, lanes, (batch, i0, j0, t) = plan.workload, plan.unit.lanes, where
    slots = [(i, j) for i in range(plan.mr) for j in range(plan.nr)]
    acc = registers(plan.mr * plan.nr * lanes)

    def a(i: int, p: Expr) -> Expr:
        if rows is None:
            return ops.a_along_k(batch, i0 + i, k0 + p, lanes)
        return rows[at((batch * w.m + i0 + i) * w.k + k0 + p, lanes)]

    def b(j: int, p: Expr) -> Expr:
        return ops.b_along_k(batch, k0 + p, j0 + j, lanes)

    def slot(i: int, j: int) -> Expr:
        return at((i * plan.nr + j) * lanes, lanes)

    def step(p: Expr, keep: Expr | None = None) -> None:
        for i, j in slots if plan.nr <= plan.mr else [(i, j) for j in range(plan.nr) for i in range(plan.mr)]:
            x, y = a(i, p), b(j, p)
            if keep is not None:  # both sides: 0 * inf is no zero
                x, y = (T.Select(keep, v, constant(0.0, lanes)) for v in (x, y))
            store(acc, acc[slot(i, j)] + x * y, slot(i, j))

    zero(acc, plan.mr * plan.nr, lanes)
    vectors = length // lanes
    with loop(vectors // plan.ku) as outer:  # at least once: a plan unrolls no more than there is
        for u in range(plan.ku):
            step((outer * plan.ku + u) * lanes)
    for u in range(vectors % plan.ku):
        step((vectors - vectors % plan.ku + u) * lanes)
    if length % lanes:
        # The last vector is shifted back to end at the edge; lanes that were counted already are left out.
        keep = T.Ramp(0, 1, lanes) >= splat(tirx.IntImm("int32", lanes - length % lanes), lanes)
        step(length - lanes, keep)
    base = t * (plan.mr * plan.nr * lanes)
    if resume is not False:
        with when(None if resume is True else resume):
            for i, j in slots:
                saved = sums[at(base + (i * plan.nr + j) * lanes, lanes)]
                store(acc, acc[slot(i, j)] + saved, slot(i, j))
    for i, j in slots:
        if last:
            ops.write(batch, i0 + i, j0 + j, across_lanes(acc[slot(i, j)], lanes), 1)
        else:
            store(sums, acc[slot(i, j)], at(base + (i * plan.nr + j) * lanes, lanes))
