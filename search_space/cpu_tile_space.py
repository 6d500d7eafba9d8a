"""The open knobs that the register-tiled CPU GEMM sketches share."""

from abc import abstractmethod

from search_space.cpu_gemm import NARROWEST, CpuGemmSketch, column_unit, gemm, is_half
from search_space.cpu_model import at_most, ceil_div, vector_unit
from search_space.cpu_tile_plan import TilePlan
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

_ROWS = {16: (1, 2, 3, 4, 6), 32: (1, 2, 3, 4, 6, 8, 12, 14)}
_VECTORS = {16: (1, 2, 3, 4), 32: (1, 2, 3, 4, 6)}


def tile_knobs(workload: GemmWorkload, target: Target) -> tuple[Knob, ...]:
    """mr, nv, ku: the register tile and its unroll."""
    unit = column_unit(workload, target)
    rows = at_most(_ROWS[unit.registers], workload.m)
    rows = tuple(r for r in rows if r > 1) or rows  # one row reuses no B; only m = 1 needs it
    return (
        Knob("mr", rows, "rows of the register tile"),
        Knob("nv", at_most(_VECTORS[unit.registers], max(1, workload.n // unit.lanes)), "vectors of the register tile"),
        # LLVM unrolls 1 by 2 itself; beyond 4 the tile spills.
        Knob("ku", (1, 4) if workload.k >= 4 else (1,), "steps of k unrolled"),
    )


def chunk_knob(workload: GemmWorkload, target: Target, smallest_tile: int) -> Knob:
    """m_chunks: powers of two and multiples of the core count, up to one register tile a chunk."""
    cores = target.cores
    values = {1, cores, 2 * cores, 4 * cores}
    limit = ceil_div(workload.m, smallest_tile)
    return Knob("m_chunks", tuple(sorted(v for v in values if v <= limit)), "pieces of m that run in parallel")


def n_block_knob(workload: GemmWorkload, target: Target) -> Knob:
    tiles = ceil_div(workload.n, column_unit(workload, target).lanes)
    values = tuple(v for v in (1, 4, 8, 16) if v <= tiles)
    return Knob("nb", values, "register tiles along n of one task")


def k_block_knob(workload: GemmWorkload) -> Knob:
    """kc: up to the whole of k, which is one block."""
    values = (*(v for v in (256, 512, 1024) if v < workload.k), workload.k)
    return Knob("kc", values, "steps of k between two visits of a tile")


ORDER_KNOB = Knob("n_inner", (False, True), "whether a task walks its tiles along n first")


def pack_a_knob(workload: GemmWorkload) -> Knob:
    """Half-precision A is widened to float32 while it is packed, so there it is not open."""
    values = ("tiles",) if is_half(workload.dtype_a) else ("none", "tiles")
    return Knob("pack_a", values, "whether A is copied to [m tile, k, mr] first")


class TileSketch(CpuGemmSketch):
    """A sketch whose every choice is a TilePlan."""

    @abstractmethod
    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> TilePlan: ...

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.n < NARROWEST:
            return Refusal("n", "has too few columns for a vector", (f">= {NARROWEST}",))
        return None

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        return self.plan(gemm(workload), target, knobs).violated()

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return self.plan(gemm(workload), target, knobs).resources()

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return self.plan(gemm(workload), target, knobs).traffic(target)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return self.plan(gemm(workload), target, knobs).features(target)


def register_tiles(target: Target) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) that keep both multiply-add units busy and fit the register file, best first."""
    return ((6, 2), (4, 3)) if vector_unit(target).registers == 16 else ((8, 2), (4, 4), (6, 4), (12, 2), (8, 3))
