"""Knobs of the bfloat16 GEMM on pairs."""

from search_space.cpu_gemm import column_unit, gemm, legal_seeds
from search_space.cpu_tile_plan import TilePlan
from search_space.cpu_tile_space import ORDER_KNOB, TileSketch, chunk_knob, n_block_knob, register_tiles, tile_knobs
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload


class CpuGemmBf16(TileSketch):
    """Loop order: parallel (batch, n block, m chunk) > pack B in pairs of k > tiles > pairs > mr x nv vectors.

    `ku` counts pairs. A is packed to [m tile, pair, mr] before, an odd k ends with a pair whose second half is 0.
    """

    name = "cpu_gemm_bf16"
    version = 1
    complexity = 3

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        for name in ("dtype_a", "dtype_b"):
            if getattr(workload, name) != "bfloat16":
                return Refusal(name, "only bfloat16 has a dot product of pairs", ("bfloat16",))
        if "avx512bf16" not in target.features:
            return Refusal("dtype_a", f"{target.arch} has no AVX512_BF16", ("float32",))
        if workload.n < column_unit(workload, target).lanes or workload.n < target.vector_bits // 32:
            return Refusal("n", "is below one vector", (f">= {target.vector_bits // 32}",))
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        mr, nv, _ = tile_knobs(w, target)
        pairs = (1, 4) if w.k >= 8 else (1,)
        chunks = chunk_knob(w, target, int(mr.values[0]))
        return (mr, nv, Knob("ku", pairs, "pairs of k unrolled"), n_block_knob(w, target), chunks, ORDER_KNOB)

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
            pack_a="tiles",
            pack_b="block",
            packed_dtype="bfloat16",
        )

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        wishes: list[dict[str, KnobValue]] = [
            {"mr": mr, "nv": nv, "ku": 4, "nb": nb, "m_chunks": 1, "n_inner": True}
            for mr, nv in register_tiles(target)[:2]
            for nb in (1, 8)
        ]
        return legal_seeds(self, workload, target, wishes)


SKETCH = CpuGemmBf16()
