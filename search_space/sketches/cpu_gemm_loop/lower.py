"""Lowers a choice of cpu_gemm_loop."""

import tvm
from tvm.tirx.script.builder import ir as T

from search_space.cpu_model import ceil_div
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.emit import loop, prim_func, registers, tile_start
from search_space.lowering.gemm_operands import GemmOperands, zero
from search_space.lowering.register_tile import multiply
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    w = workload
    mr, nr, ku = int(knobs["mr"]), int(knobs["nr"]), int(knobs["ku"])
    m_tiles, n_tiles = ceil_div(w.m, mr), ceil_div(w.n, nr)

    def body():
        ops = GemmOperands.declare(w)
        with loop(w.batch * m_tiles * n_tiles, parallel=True) as task:
            batch = T.Bind(task // (m_tiles * n_tiles))
            i0 = tile_start(task // n_tiles % m_tiles, mr, w.m)
            j0 = tile_start(task % n_tiles, nr, w.n)
            acc = registers(mr * nr)
            zero(acc, mr * nr, 1)
            multiply(
                acc,
                lambda i, p: ops.a_at(batch, i0 + i, p),
                lambda p, j: ops.b_at(batch, p, j0 + j),
                (mr, nr, 1),
                w.k,
                ku,
            )
            for i in range(mr):
                for j in range(nr):
                    ops.write(batch, i0 + i, j0 + j, acc[i * nr + j], 1)

    return Lowered(tvm.IRModule({"main": prim_func("main", body)}))
