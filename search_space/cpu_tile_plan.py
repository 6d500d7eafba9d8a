"""How a register-tiled CPU GEMM cuts its iteration space: the arithmetic that constraints, features and lowering share.

Loop order, outermost first: parallel (batch, n block, m chunk, and k block when k is split) > k block > the tiles of
the task (m x n, either order) > k > one register tile of `mr` rows x `nv` vectors. The packing follows GotoBLAS
(Goto and van de Geijn, ACM TOMS 34(3), 2008), the edges are overlapping tiles.
"""

from dataclasses import dataclass

from search_space.cpu_gemm import is_half, itemsize
from search_space.cpu_model import VectorUnit, ceil_div, grain_waste, overlap_waste
from search_space.gemm import GemmWorkload
from search_space.sketch import Constraint, Resources, Traffic
from search_space.target import Target

# Two multiply-adds a cycle with a latency of four cycles want eight sums in flight; six lose a quarter.
_FEWEST_SUMS = 6


@dataclass(frozen=True)
class TilePlan:
    """`nb`: register tiles along n of one task. `pack_a`: none or tiles. `pack_b`: none, block (by each task),
    shared (once, by all tasks, before the product) or ahead (before the call). `split_k`: the k blocks are parallel
    and their partial sums are added at the end."""

    workload: GemmWorkload
    unit: VectorUnit
    mr: int
    nv: int
    ku: int
    kc: int
    nb: int
    m_chunks: int
    n_inner: bool
    pack_a: str
    pack_b: str
    split_k: bool = False
    packed_dtype: str = "float32"

    @property
    def nr(self) -> int:
        """Columns of the register tile."""
        return self.nv * self.unit.lanes

    @property
    def m_tiles(self) -> int:
        return ceil_div(self.workload.m, self.mr)

    @property
    def n_tiles(self) -> int:
        return ceil_div(self.workload.n, self.nr)

    @property
    def n_blocks(self) -> int:
        return ceil_div(self.n_tiles, self.nb)

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.workload.k, self.kc)

    @property
    def tiles_per_chunk(self) -> int:
        return ceil_div(self.m_tiles, self.m_chunks)

    @property
    def grains(self) -> int:
        """Parallel tasks of the product."""
        return self.workload.batch * self.n_blocks * self.m_chunks * (self.k_blocks if self.split_k else 1)

    @property
    def packed_b_elements(self) -> int:
        """B packed whole: [batch, n tile, k, nr]; the shifted last tile repeats a few columns."""
        return self.workload.batch * self.n_tiles * self.workload.k * self.nr

    @property
    def packed_a_elements(self) -> int:
        """A packed whole: [batch, m tile, k, mr]."""
        return self.workload.batch * self.m_tiles * self.workload.k * self.mr

    @property
    def vector_registers(self) -> int:
        """Accumulators, the shorter of the two operand vectors of one k step, and one for the other."""
        return self.mr * self.nv + min(self.mr, self.nv) + 1

    def violated(self) -> Constraint | None:
        for broken, name, reason in self._rules():
            if broken:
                return Constraint(name, reason)
        return None

    def _rules(self) -> tuple[tuple[bool, str, str], ...]:
        w, ku = self.workload, self.ku
        return (
            (self.mr > w.m, "rows", "the register tile has more rows than C"),
            (self.nr > w.n, "columns", "the register tile has more columns than C: it could not be shifted back"),
            (self.vector_registers > self.unit.registers, "registers", "the tile does not stay in registers"),
            (
                self.mr * self.nv < min(_FEWEST_SUMS, w.m * min(4, max(1, w.n // self.unit.lanes))),
                "latency",
                "too few sums to hide the latency of a multiply-add",
            ),
            (ku > self.kc, "unroll", "k is unrolled beyond one block"),
            (
                self.k_blocks > 1 and bool(w.k % ku or self.kc % ku),
                "unroll",
                "the unroll does not divide the blocks of k",
            ),
            (self.nb > self.n_tiles, "n_block", "a task has more tiles along n than there are"),
            (self.m_chunks > self.m_tiles, "m_chunks", "more chunks of rows than register tiles"),
            (
                ceil_div(self.m_tiles, self.tiles_per_chunk) != self.m_chunks,
                "m_chunks",
                "some chunks of rows would be empty",
            ),
            (self.nb == 1 and not self.n_inner, "order", "one tile along n has no inner order"),
            (
                self.tiles_per_chunk == 1 and not self.n_inner,
                "order",
                "one tile along m has no inner order",
            ),
            (self.pack_b == "none" and w.trans_b and w.k > 1, "pack_b", "a transposed B has no vectors along n"),
            (self.pack_a == "none" and is_half(w.dtype_a), "pack_a", f"{w.dtype_a} is widened while A is packed"),
        )

    def resources(self) -> Resources:
        private = self.kc * self.nr * self.nb * 4 if self.pack_b == "block" else 0
        if self.k_blocks > 1 and not self.split_k:
            private += self.tiles_per_chunk * self.nb * self.mr * self.nr * 4
        shared = self.packed_a_elements * 4 if self.pack_a != "none" else 0
        shared += self.packed_b_elements * 4 if self.pack_b == "shared" else 0
        if self.split_k:
            w = self.workload
            shared += self.k_blocks * w.batch * w.m * w.n * 4
        return Resources(self.vector_registers, threads=self.grains, workspace_bytes=private + shared)

    def pack_bytes(self) -> float:
        """Bytes read and written by the packing inside the call."""
        w, total = self.workload, 0.0
        if self.pack_b in ("block", "shared"):
            repeats = self.m_chunks if self.pack_b == "block" else 1
            total += repeats * w.batch * w.k * w.n * (itemsize(w.dtype_b) + 4)
        if self.pack_a != "none":
            total += w.batch * w.m * w.k * (itemsize(w.dtype_a) + 4)
        return total

    def traffic(self, target: Target) -> Traffic:
        """Each level is charged with what the loops inside it cannot keep (one pass of the reuse-distance model)."""
        w = self.workload
        out = w.batch * w.m * w.n * itemsize(w.dtype_out)
        a_item = 4 if self.pack_a != "none" else itemsize(w.dtype_a)
        b_item = 4 if self.pack_b in ("block", "shared") else itemsize(self.b_dtype)
        macs = float(w.batch * w.m * w.n * w.k)
        l1 = macs / self.nr * a_item + macs / self.mr * b_item
        panel = self.kc * self.nr * b_item
        rows = self.kc * self.mr * a_item
        # With n inner the A rows stay and the panels of the block stream by; with m inner the panel stays.
        a_from_l2 = macs / (self.nr * self.nb if self.n_inner else self.nr) * a_item
        stays = (not self.n_inner or self.nb == 1) and panel + rows <= target.l1_bytes
        b_from_l2 = macs / (self.mr * self.tiles_per_chunk if stays else self.mr) * b_item
        block = panel * self.nb
        a_beyond = macs / (self.nr * self.nb) * a_item
        b_beyond = macs / (self.mr * self.tiles_per_chunk if block <= target.l2_bytes else self.mr) * b_item
        partial = 0.0 if self.k_blocks == 1 else 2.0 * (self.k_blocks - 1) * w.batch * w.m * w.n * 4
        l3 = a_beyond + b_beyond + self.pack_bytes() + partial + out
        return Traffic(
            memory_bytes=float(w.min_bytes()) if w.min_bytes() > target.l3_bytes else 0.0,
            l3_bytes=l3,
            l2_bytes=a_from_l2 + b_from_l2 + partial + out,
            l1_bytes=l1 + partial + out,
        )

    @property
    def b_dtype(self) -> str:
        """How B lies in memory when the product reads it."""
        if self.pack_b == "ahead":
            return self.packed_dtype
        return "float32" if self.pack_b in ("block", "shared") else self.workload.dtype_b

    def features(self, target: Target) -> dict[str, float]:
        w = self.workload
        panel, rows = self.kc * self.nr * itemsize(self.b_dtype), self.kc * self.mr * 4
        block = panel * self.nb
        per_step = self.mr + self.nv
        out: dict[str, float] = {
            "tile_m": self.mr,
            "tile_n": self.nr,
            "tile_k": self.kc,
            "unroll_k": self.ku,
            "vector_lanes": self.unit.lanes,
            "accumulators": self.mr * self.nv,
            "register_pressure": self.vector_registers / self.unit.registers,
            "loads_per_fma": per_step / (self.mr * self.nv),
            "k_blocks": self.k_blocks,
            "block_n": self.nr * self.nb,
            "block_m": self.mr * self.tiles_per_chunk,
            "n_inner": float(self.n_inner),
            "parallel_grains": self.grains,
            "grain_waste": grain_waste(self.grains, target.cores),
            "tail_waste_m": overlap_waste(w.m, self.mr),
            "tail_waste_n": overlap_waste(w.n, self.nr),
            "pack_bytes": self.pack_bytes(),
            "packs_a": float(self.pack_a != "none"),
            "packs_b": float(("none", "ahead", "block", "shared").index(self.pack_b)),
            "l1_footprint": panel + rows,
            "l2_footprint": block + self.kc * self.mr * 4 * self.tiles_per_chunk,
            "l1_ratio": (panel + rows) / max(1, target.l1_bytes),
            "l2_ratio": block / max(1, target.l2_bytes),
            "workspace_bytes": self.resources().workspace_bytes,
            "split_k": float(self.k_blocks if self.split_k else 1),
            # Rows whose pitch is a multiple of a page share one set of the first-level cache.
            "row_pitch_aliases": float(self.pack_a == "none" and w.k * itemsize(w.dtype_a) % 4096 == 0),
        }
        return {name: float(value) for name, value in out.items()}
