"""How a dot-product GEMM cuts its work: vectors run along k, so both operands are read in place and once.

Loop order, outermost first: parallel (batch, n chunk, m chunk) > n tile > k block > m tile > k > mr x nr vector sums.
"""

from dataclasses import dataclass

from search_space.cpu_gemm import itemsize
from search_space.cpu_model import VectorUnit, ceil_div, grain_waste, overlap_waste
from search_space.gemm import GemmWorkload
from search_space.sketch import Constraint, Resources, Traffic
from search_space.target import Target


@dataclass(frozen=True)
class DotPlan:
    """`ku`: vectors of k unrolled; `kc`: steps of k (a multiple of ku vectors) between two visits of a tile.
    `copy_a`: A is first copied to float32 rows [batch, m, k]."""

    workload: GemmWorkload
    unit: VectorUnit
    mr: int
    nr: int
    ku: int
    kc: int
    n_chunks: int
    m_chunks: int
    copy_a: bool

    @property
    def m_tiles(self) -> int:
        return ceil_div(self.workload.m, self.mr)

    @property
    def n_tiles(self) -> int:
        return ceil_div(self.workload.n, self.nr)

    @property
    def m_tiles_per_chunk(self) -> int:
        return ceil_div(self.m_tiles, self.m_chunks)

    @property
    def n_tiles_per_chunk(self) -> int:
        return ceil_div(self.n_tiles, self.n_chunks)

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.workload.k, self.kc)

    @property
    def grains(self) -> int:
        return self.workload.batch * self.n_chunks * self.m_chunks

    @property
    def vector_registers(self) -> int:
        return self.mr * self.nr + min(self.mr, self.nr) + 1

    def violated(self) -> Constraint | None:
        w, step = self.workload, self.unit.lanes * self.ku
        rules = (
            (self.mr > w.m, "rows", "the register tile has more rows than C"),
            (self.nr > w.n, "columns", "the register tile has more columns than C"),
            (self.vector_registers > self.unit.registers, "registers", "the tile does not stay in registers"),
            (step > w.k, "unroll", "k is shorter than the unrolled vectors"),
            (self.k_blocks > 1 and self.kc % step != 0, "unroll", "the unroll does not divide a block of k"),
            (self.n_chunks > self.n_tiles, "n_chunks", "more chunks of columns than register tiles"),
            (self.m_chunks > self.m_tiles, "m_chunks", "more chunks of rows than register tiles"),
            (
                ceil_div(self.n_tiles, self.n_tiles_per_chunk) != self.n_chunks,
                "n_chunks",
                "some chunks of columns would be empty",
            ),
            (
                ceil_div(self.m_tiles, self.m_tiles_per_chunk) != self.m_chunks,
                "m_chunks",
                "some chunks of rows would be empty",
            ),
        )
        return next((Constraint(name, reason) for broken, name, reason in rules if broken), None)

    def resources(self) -> Resources:
        w = self.workload
        sums = self.m_tiles_per_chunk * self.mr * self.nr * self.unit.lanes * 4 if self.k_blocks > 1 else 0
        copy = w.batch * w.m * w.k * 4 if self.copy_a else 0
        return Resources(self.vector_registers, threads=self.grains, workspace_bytes=sums + copy)

    def traffic(self, target: Target) -> Traffic:
        """A is read once for each tile of columns, B once for each tile of rows while its block stays in L1."""
        w = self.workload
        macs = float(w.batch * w.m * w.n * w.k)
        a_item = 4 if self.copy_a else itemsize(w.dtype_a)
        b_item = itemsize(w.dtype_b)
        out = float(w.batch * w.m * w.n * itemsize(w.dtype_out))
        a = macs / self.nr * a_item
        b = macs / self.mr * b_item
        b_once = macs / (self.mr * self.m_tiles_per_chunk) * b_item
        stays = self.kc * self.nr * b_item <= target.l1_bytes
        a_stays = w.m * w.k * a_item <= target.l2_bytes
        return Traffic(
            memory_bytes=float(w.min_bytes()) if w.min_bytes() > target.l3_bytes else 0.0,
            l3_bytes=b_once + (w.m * w.k * a_item * w.batch if a_stays else a) + out,
            l2_bytes=a + (b_once if stays else b) + out,
            l1_bytes=a + b + out,
        )

    def features(self, target: Target) -> dict[str, float]:
        w, lanes = self.workload, self.unit.lanes
        panel = self.kc * self.nr * itemsize(w.dtype_b)
        rows = self.kc * self.mr * self.m_tiles_per_chunk * (4 if self.copy_a else itemsize(w.dtype_a))
        out: dict[str, float] = {
            "tile_m": self.mr,
            "tile_n": self.nr,
            "tile_k": self.kc,
            "unroll_k": self.ku,
            "vector_lanes": lanes,
            "accumulators": self.mr * self.nr,
            "register_pressure": self.vector_registers / self.unit.registers,
            "loads_per_fma": (self.mr + self.nr) / (self.mr * self.nr),
            "k_blocks": self.k_blocks,
            "block_n": self.nr * self.n_tiles_per_chunk,
            "block_m": self.mr * self.m_tiles_per_chunk,
            "parallel_grains": self.grains,
            "grain_waste": grain_waste(self.grains, target.cores),
            "tail_waste_m": overlap_waste(w.m, self.mr),
            "tail_waste_n": overlap_waste(w.n, self.nr),
            "pack_bytes": w.batch * w.m * w.k * (itemsize(w.dtype_a) + 4) if self.copy_a else 0,
            "packs_a": float(self.copy_a),
            "l1_footprint": panel + self.kc * self.mr * 4,
            "l2_footprint": panel + rows,
            "l1_ratio": (panel + self.kc * self.mr * 4) / max(1, target.l1_bytes),
            "l2_ratio": (panel + rows) / max(1, target.l2_bytes),
            "workspace_bytes": self.resources().workspace_bytes,
            "streams": self.nr,
            "vectors_along_k": 1.0,
        }
        return {name: float(value) for name, value in out.items()}
