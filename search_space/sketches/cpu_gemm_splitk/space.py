"""Knobs of the register-tiled GEMM with a parallel reduction."""

from search_space.cpu_gemm import column_unit, gemm, is_half, legal_seeds
from search_space.cpu_model import ceil_div
from search_space.cpu_tile_plan import TilePlan
from search_space.cpu_tile_space import (
    TileSketch,
    n_block_knob,
    pack_a_knob,
    register_tiles,
    tile_knobs,
)
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Constraint, Refusal
from search_space.target import Target
from search_space.workload import Workload

# Below this many steps a piece costs more in partial sums than it gains.
_SHORTEST_PIECE = 64


class CpuGemmSplitK(TileSketch):
    """Loop order: parallel (batch, k piece, n block) > pack B > tiles > k > mr x nv vectors; then the sum."""

    name = "cpu_gemm_splitk"
    version = 1
    complexity = 4

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.k < 2 * _SHORTEST_PIECE:
            return Refusal("k", "is too short to be split", (f">= {2 * _SHORTEST_PIECE}",))
        return super().structure_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        cores = target.cores
        pieces = {2, 4, cores, 2 * cores, 4 * cores} - {1}
        transposed = w.trans_b
        return (
            *tile_knobs(w, target),
            Knob(
                "pieces",
                tuple(sorted(p for p in pieces if p * _SHORTEST_PIECE <= w.k)),
                "pieces of k that run in parallel",
            ),
            n_block_knob(w, target),
            pack_a_knob(w),
            Knob("pack_b", ("block",) if transposed else ("none", "block"), "whether each task packs its part of B"),
        )

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> TilePlan:
        return TilePlan(
            workload=workload,
            unit=column_unit(workload, target),
            mr=int(knobs["mr"]),
            nv=int(knobs["nv"]),
            ku=int(knobs["ku"]),
            kc=ceil_div(workload.k, int(knobs["pieces"])),
            nb=int(knobs["nb"]),
            m_chunks=1,
            n_inner=True,
            pack_a=str(knobs["pack_a"]),
            pack_b=str(knobs["pack_b"]),
            split_k=True,
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        plan = self.plan(gemm(workload), target, knobs)
        if plan.k_blocks != int(knobs["pieces"]):
            return Constraint("pieces", "some pieces of k would be empty")
        return plan.violated()

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = gemm(workload)
        pack_a = "tiles" if is_half(w.dtype_a) else "none"
        wishes: list[dict[str, KnobValue]] = [
            {"mr": mr, "nv": nv, "ku": 1, "pieces": target.cores, "nb": nb, "pack_a": pack_a, "pack_b": "block"}
            for mr, nv in register_tiles(target)[:1]
            for nb in (1, 8)
        ]
        return legal_seeds(self, w, target, wishes)


SKETCH = CpuGemmSplitK()
