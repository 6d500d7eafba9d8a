"""How a streaming GEMM cuts its work: few rows, B [k, n] read in place and once, C kept close.

Loop order, outermost first: parallel (batch, n chunk) > block of kb rows of B > n tile > m tile > kb > mr x nv vectors.
A block reads kb rows of B side by side: as many streams as the prefetchers can follow, each of consecutive lines.
"""

from dataclasses import dataclass

from search_space.cpu_gemm import is_half, itemsize
from search_space.cpu_model import VectorUnit, ceil_div, grain_waste, overlap_waste
from search_space.gemm import GemmWorkload
from search_space.sketch import Constraint, Resources, Traffic
from search_space.target import Target


@dataclass(frozen=True)
class StreamPlan:
    """`kb`: rows of B read side by side; `ku` of them unrolled. `n_chunks`: parallel pieces of n."""

    workload: GemmWorkload
    unit: VectorUnit
    mr: int
    nv: int
    kb: int
    ku: int
    n_chunks: int

    @property
    def nr(self) -> int:
        return self.nv * self.unit.lanes

    @property
    def m_tiles(self) -> int:
        return ceil_div(self.workload.m, self.mr)

    @property
    def n_tiles(self) -> int:
        return ceil_div(self.workload.n, self.nr)

    @property
    def tiles_per_chunk(self) -> int:
        return ceil_div(self.n_tiles, self.n_chunks)

    @property
    def columns(self) -> int:
        """Columns of C that one task owns."""
        return self.tiles_per_chunk * self.nr

    @property
    def grains(self) -> int:
        return self.workload.batch * self.n_chunks

    @property
    def copy_a(self) -> bool:
        """A is read as scalars many times: a half-precision one is widened once, before."""
        return is_half(self.workload.dtype_a)

    @property
    def vector_registers(self) -> int:
        return self.mr * self.nv + min(self.mr, self.nv) + 1

    def violated(self) -> Constraint | None:
        w = self.workload
        rules = (
            (self.mr > w.m, "rows", "the register tile has more rows than C"),
            (self.nr > w.n, "columns", "the register tile has more columns than C"),
            (self.vector_registers > self.unit.registers, "registers", "the tile does not stay in registers"),
            (self.kb > w.k, "k_block", "a block has more rows than B"),
            (self.ku > self.kb or self.kb % self.ku != 0, "unroll", "the unroll does not divide a block of k"),
            (self.n_chunks > self.n_tiles, "n_chunks", "more chunks of columns than register tiles"),
            (
                ceil_div(self.n_tiles, self.tiles_per_chunk) != self.n_chunks,
                "n_chunks",
                "some chunks of columns would be empty",
            ),
        )
        return next((Constraint(name, reason) for broken, name, reason in rules if broken), None)

    def resources(self) -> Resources:
        w = self.workload
        sums = self.m_tiles * self.mr * self.columns * 4
        copy = w.batch * w.m * w.k * 4 if self.copy_a else 0
        return Resources(self.vector_registers, threads=self.grains, workspace_bytes=sums + copy)

    def traffic(self, target: Target) -> Traffic:
        """B crosses every level once; the sums of a task are read and written once a block."""
        w = self.workload
        macs = float(w.batch * w.m * w.n * w.k)
        b_once = float(w.batch * w.k * w.n * itemsize(w.dtype_b))
        sums = 2.0 * w.batch * w.m * w.n * 4 * ceil_div(w.k, self.kb)
        out = float(w.batch * w.m * w.n * itemsize(w.dtype_out))
        sums_in_l1 = w.m * self.columns * 4 <= target.l1_bytes // 2
        sums_in_l2 = w.m * self.columns * 4 <= target.l2_bytes // 2
        return Traffic(
            memory_bytes=float(w.min_bytes()) if w.min_bytes() > target.l3_bytes else 0.0,
            l3_bytes=b_once + out + (0.0 if sums_in_l2 else sums),
            l2_bytes=b_once + out + (0.0 if sums_in_l1 else sums),
            l1_bytes=macs / self.nr * 4 + macs / self.mr * itemsize(w.dtype_b) + sums + out,
        )

    def features(self, target: Target) -> dict[str, float]:
        w = self.workload
        sums = self.m_tiles * self.mr * self.columns * 4
        block = self.kb * self.nr * itemsize(w.dtype_b)
        out: dict[str, float] = {
            "tile_m": self.mr,
            "tile_n": self.nr,
            "tile_k": self.kb,
            "unroll_k": self.ku,
            "vector_lanes": self.unit.lanes,
            "accumulators": self.mr * self.nv,
            "register_pressure": self.vector_registers / self.unit.registers,
            "loads_per_fma": (self.mr + self.nv) / (self.mr * self.nv) + 2.0 / self.kb,
            "k_blocks": ceil_div(w.k, self.kb),
            "block_n": self.columns,
            "block_m": w.m,
            "parallel_grains": self.grains,
            "grain_waste": grain_waste(self.grains, target.cores),
            "tail_waste_m": overlap_waste(w.m, self.mr),
            "tail_waste_n": overlap_waste(w.n, self.nr),
            "pack_bytes": w.batch * w.m * w.k * (itemsize(w.dtype_a) + 4) if self.copy_a else 0,
            "packs_a": float(self.copy_a),
            "l1_footprint": block + self.kb * self.mr * 4,
            "l2_footprint": block + sums,
            "l1_ratio": (block + sums) / max(1, target.l1_bytes),
            "l2_ratio": (block + sums) / max(1, target.l2_bytes),
            "workspace_bytes": self.resources().workspace_bytes,
            "streams": self.kb,
        }
        return {name: float(value) for name, value in out.items()}
