"""Knobs of the register-tiled GEMM that packs B inside the call."""

from search_space.cpu_gemm import column_unit, gemm, is_half, legal_seeds
from search_space.cpu_tile_plan import TilePlan
from search_space.cpu_tile_space import (
    ORDER_KNOB,
    TileSketch,
    chunk_knob,
    k_block_knob,
    n_block_knob,
    pack_a_knob,
    register_tiles,
    tile_knobs,
)
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.target import Target
from search_space.workload import Workload


class CpuGemmPacked(TileSketch):
    """Loop order: parallel (batch, n block, m chunk) > k block > pack B > tiles > k > mr x nv vectors."""

    name = "cpu_gemm_packed"
    version = 1
    complexity = 3

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        tile = tile_knobs(w, target)
        smallest = int(tile[0].values[0])
        return (
            *tile,
            k_block_knob(w),
            n_block_knob(w, target),
            chunk_knob(w, target, smallest),
            ORDER_KNOB,
            pack_a_knob(w),
            Knob("pack_b", ("block", "shared"), "B is packed by each task for itself, or once by all before"),
        )

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> TilePlan:
        return TilePlan(
            workload=workload,
            unit=column_unit(workload, target),
            mr=int(knobs["mr"]),
            nv=int(knobs["nv"]),
            ku=int(knobs["ku"]),
            kc=int(knobs["kc"]),
            nb=int(knobs["nb"]),
            m_chunks=int(knobs["m_chunks"]),
            n_inner=bool(knobs["n_inner"]),
            pack_a=str(knobs["pack_a"]),
            pack_b=str(knobs["pack_b"]),
        )

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = gemm(workload)
        pack_a = "tiles" if is_half(w.dtype_a) else "none"
        base: dict[str, KnobValue] = {"ku": 1, "pack_a": pack_a, "pack_b": "block", "n_inner": True, "m_chunks": 1}
        wishes: list[dict[str, KnobValue]] = []
        for mr, nv in register_tiles(target)[:2]:
            tile = {**base, "mr": mr, "nv": nv}
            wishes += [
                {**tile, "nb": 1, "kc": w.k},
                {**tile, "nb": 16, "kc": w.k, "pack_a": "tiles"},
                {**tile, "nb": 8, "kc": w.k, "pack_a": "tiles"},
            ]
        return legal_seeds(self, w, target, wishes)


SKETCH = CpuGemmPacked()
