"""Knobs of the register-tiled GEMM on weights packed ahead."""

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
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload


class CpuGemmPrepacked(TileSketch):
    """Loop order: parallel (batch, n block, m chunk) > k block > tiles > k > mr x nv vectors; B is [n tile, k, nr]."""

    name = "cpu_gemm_prepacked"
    version = 1
    complexity = 3

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if not workload.b_constant:
            return Refusal("b_constant", "B is packed ahead of the calls", ("true",))
        return super().structure_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        tile = tile_knobs(w, target)
        stored = (w.dtype_b, "float32") if is_half(w.dtype_b) else ("float32",)
        smallest = int(tile[0].values[0])
        return (
            *tile,
            k_block_knob(w),
            n_block_knob(w, target),
            chunk_knob(w, target, smallest),
            ORDER_KNOB,
            pack_a_knob(w),
            Knob("packed_dtype", stored, "element type of the packed B"),
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
            pack_b="ahead",
            packed_dtype=str(knobs["packed_dtype"]),
        )

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = gemm(workload)
        pack_a = "tiles" if is_half(w.dtype_a) else "none"
        wishes: list[dict[str, KnobValue]] = [
            {
                "mr": mr,
                "nv": nv,
                "ku": ku,
                "kc": w.k,
                "nb": 1,
                "m_chunks": 1,
                "n_inner": True,
                "pack_a": pack_a,
                "packed_dtype": w.dtype_b,
            }
            for mr, nv in register_tiles(target)[:2]
            for ku in (1, 4)
        ]
        return legal_seeds(self, w, target, wishes)


SKETCH = CpuGemmPrepacked()
