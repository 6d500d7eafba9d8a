"""Knobs of the scalar GEMM."""

from search_space.cpu_gemm import CpuGemmSketch, gemm, itemsize
from search_space.cpu_model import at_most, ceil_div, grain_waste, overlap_waste
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

# What an unrolled tile may hold in scalar registers; sixteen is the smallest register file.
_REGISTERS = 16


class CpuGemmLoop(CpuGemmSketch):
    """Loop order: parallel (batch, m tile, n tile) > k > mr x nr scalars."""

    name = "cpu_gemm_loop"
    version = 1
    complexity = 1

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        return (
            Knob("mr", at_most((1, 2, 4), w.m), "rows of a tile"),
            Knob("nr", at_most((1, 2, 4), w.n), "columns of a tile"),
            Knob("ku", at_most((1, 2, 4), w.k), "steps of k unrolled"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        if self._registers(knobs) > _REGISTERS + 5:
            return Constraint("registers", "the tile does not stay in registers")
        return None

    def _registers(self, knobs: Knobs) -> int:
        mr, nr = int(knobs["mr"]), int(knobs["nr"])
        return mr * nr + min(mr, nr) + 1

    def _tiles(self, w: GemmWorkload, knobs: Knobs) -> int:
        return w.batch * ceil_div(w.m, int(knobs["mr"])) * ceil_div(w.n, int(knobs["nr"]))

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return Resources(self._registers(knobs), threads=self._tiles(gemm(workload), knobs))

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Without blocking only the register tile reuses anything."""
        w, mr, nr = gemm(workload), int(knobs["mr"]), int(knobs["nr"])
        macs = float(w.batch * w.m * w.n * w.k)
        read = macs / nr * itemsize(w.dtype_a) + macs / mr * itemsize(w.dtype_b)
        out = float(w.batch * w.m * w.n * itemsize(w.dtype_out))
        memory = float(w.min_bytes()) if w.min_bytes() > target.l3_bytes else 0.0
        return Traffic(memory, l3_bytes=read + out, l2_bytes=read + out, l1_bytes=read + out)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, mr, nr, tiles = gemm(workload), int(knobs["mr"]), int(knobs["nr"]), self._tiles(gemm(workload), knobs)
        out: dict[str, float] = {
            "tile_m": mr,
            "tile_n": nr,
            "tile_k": w.k,
            "unroll_k": int(knobs["ku"]),
            "vector_lanes": 1,
            "accumulators": mr * nr,
            "register_pressure": self._registers(knobs) / _REGISTERS,
            "loads_per_fma": (mr + nr) / (mr * nr),
            "k_blocks": 1,
            "parallel_grains": tiles,
            "grain_waste": grain_waste(tiles, target.cores),
            "tail_waste_m": overlap_waste(w.m, mr),
            "tail_waste_n": overlap_waste(w.n, nr),
        }
        return {name: float(value) for name, value in out.items()}


SKETCH = CpuGemmLoop()
