"""Knobs of the register-tiled GEMM on B [k, n] in place."""

from search_space.cpu_gemm import column_unit, gemm, is_half, legal_seeds
from search_space.cpu_tile_plan import TilePlan
from search_space.cpu_tile_space import (
    ORDER_KNOB,
    TileSketch,
    chunk_knob,
    n_block_knob,
    pack_a_knob,
    register_tiles,
    tile_knobs,
)
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload


class CpuGemmTile(TileSketch):
    """Loop order: parallel (batch, n block, m chunk) > tiles > k > mr x nv vectors."""

    name = "cpu_gemm_tile"
    version = 1
    complexity = 2

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.trans_b and workload.k > 1:
            return Refusal("trans_b", "B is read in vectors along n", ("false",))
        return super().structure_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        tile = tile_knobs(w, target)
        smallest = int(tile[0].values[0])
        return (
            *tile,
            n_block_knob(w, target),
            chunk_knob(w, target, smallest),
            ORDER_KNOB,
            pack_a_knob(w),
        )

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> TilePlan:
        return TilePlan(
            workload=workload,
            unit=column_unit(workload, target),
            mr=int(knobs["mr"]),
            nv=int(knobs["nv"]),
            ku=int(knobs["ku"]),
            kc=workload.k,
            nb=int(knobs["nb"]),
            m_chunks=int(knobs["m_chunks"]),
            n_inner=bool(knobs["n_inner"]),
            pack_a=str(knobs["pack_a"]),
            pack_b="none",
        )

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = gemm(workload)
        pack_a = "tiles" if is_half(w.dtype_a) else "none"
        wishes: list[dict[str, KnobValue]] = [
            {"mr": mr, "nv": nv, "ku": 1, "nb": 1, "m_chunks": chunks, "n_inner": True, "pack_a": pack_a}
            for mr, nv in register_tiles(target)[:2]
            for chunks in (1, target.cores)
        ]
        return legal_seeds(self, w, target, wishes)


SKETCH = CpuGemmTile()
