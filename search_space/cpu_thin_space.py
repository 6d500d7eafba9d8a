"""The sketches for few rows or columns: choices that are a DotPlan or a StreamPlan."""

from abc import abstractmethod

from search_space.cpu_dot_plan import DotPlan
from search_space.cpu_gemm import CpuGemmSketch, column_unit, gemm, is_half
from search_space.cpu_model import at_most, ceil_div, vector_unit
from search_space.cpu_stream_plan import StreamPlan
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Constraint, Refusal, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

ThinPlan = DotPlan | StreamPlan


class ThinSketch(CpuGemmSketch):
    """A sketch whose every choice is a DotPlan or a StreamPlan."""

    @abstractmethod
    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> ThinPlan: ...

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        return self.plan(gemm(workload), target, knobs).violated()

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return self.plan(gemm(workload), target, knobs).resources()

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return self.plan(gemm(workload), target, knobs).traffic(target)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return self.plan(gemm(workload), target, knobs).features(target)


def b_lies_along_k(w: GemmWorkload) -> bool:
    """Whether one column of B is contiguous: transposed, or a single column."""
    return w.trans_b or w.n == 1


def b_lies_along_n(w: GemmWorkload) -> bool:
    return not w.trans_b or w.k == 1


def dot_refusal(w: GemmWorkload, target: Target) -> Refusal | None:
    lanes = vector_unit(target).lanes
    if not b_lies_along_k(w):
        return Refusal("trans_b", "B is read in vectors along k", ("true",))
    if w.k < lanes:
        return Refusal("k", f"is below one vector of {lanes}", (f">= {lanes}",))
    return None


def stream_refusal(w: GemmWorkload, target: Target) -> Refusal | None:
    if not b_lies_along_n(w):
        return Refusal("trans_b", "B is read in vectors along n", ("false",))
    if w.n < column_unit(w, target).lanes:
        return Refusal("n", "has too few columns for a vector", (f">= {column_unit(w, target).lanes}",))
    return None


def _chunks(tiles: int, cores: int, least: tuple[int, ...] = (1,)) -> tuple[int, ...]:
    values = {*least, cores, 2 * cores, 4 * cores, 8 * cores, 16 * cores}
    return tuple(sorted(v for v in values if v <= tiles)) or (1,)


def dot_knobs(w: GemmWorkload, target: Target) -> tuple[Knob, ...]:
    """mr x nr, ku, kc, chunks; `copy_a` is open where A lies along k and is float32, else it follows."""
    unit = vector_unit(target)
    widest = 6 if unit.registers == 32 else 4
    transposed_a = w.trans_a and w.m > 1
    copies: tuple[KnobValue, ...] = (True,) if transposed_a else (False, True) if is_half(w.dtype_a) else (False,)
    rows = tuple(r for r in (1, 2, 3, 4, 5, 6) if r <= widest)
    columns: tuple[int, ...] = (1, 2, 3, 4, 6, 8) if w.m <= 2 else rows
    return (
        Knob("mr", at_most(rows, w.m), "rows of A in a tile"),
        Knob("nr", at_most(columns, w.n), "rows of transposed B in a tile"),
        Knob("ku", tuple(u for u in (1, 4) if u * unit.lanes <= w.k), "vectors of k unrolled"),
        Knob("kc", at_most((512, 1024, 2048), w.k), "steps of k between two visits of a tile"),
        Knob("n_chunks", _chunks(ceil_div(w.n, 1), target.cores), "pieces of n that run in parallel"),
        Knob("m_chunks", (1,) if w.n > 1 else _chunks(w.m, target.cores), "pieces of m that run in parallel"),
        Knob("copy_a", copies, "whether A is first copied to float32 rows"),
    )


def dot_plan(w: GemmWorkload, target: Target, knobs: Knobs) -> DotPlan:
    return DotPlan(
        workload=w,
        unit=vector_unit(target),
        mr=int(knobs["mr"]),
        nr=int(knobs["nr"]),
        ku=int(knobs["ku"]),
        kc=int(knobs["kc"]),
        n_chunks=int(knobs["n_chunks"]),
        m_chunks=int(knobs["m_chunks"]),
        copy_a=bool(knobs["copy_a"]),
    )


def stream_knobs(w: GemmWorkload, target: Target) -> tuple[Knob, ...]:
    """mr x nv, kb, ku, chunks."""
    unit = column_unit(w, target)
    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8) if unit.registers == 32 else (1, 2, 3, 4, 5, 6)
    rows = tuple(r for r in at_most(rows, w.m) if r > 1) or (1,)
    vectors = (1, 2, 4, 8) if w.m == 1 else (1, 2, 3, 4)
    tiles = ceil_div(w.n, unit.lanes)
    return (
        Knob("mr", rows, "rows of the register tile"),
        Knob("nv", at_most(vectors, w.n // unit.lanes), "vectors of the register tile"),
        Knob("kb", at_most((4, 8, 16, 32, 64), w.k), "rows of B read side by side"),
        Knob("ku", at_most((1, 4, 8), w.k), "steps of k unrolled"),
        Knob("n_chunks", _chunks(tiles, target.cores), "pieces of n that run in parallel"),
    )


def stream_plan(w: GemmWorkload, target: Target, knobs: Knobs) -> StreamPlan:
    return StreamPlan(
        workload=w,
        unit=column_unit(w, target),
        mr=int(knobs["mr"]),
        nv=int(knobs["nv"]),
        kb=int(knobs["kb"]),
        ku=int(knobs["ku"]),
        n_chunks=int(knobs["n_chunks"]),
    )


def dot_wishes(w: GemmWorkload, target: Target) -> list[dict[str, KnobValue]]:
    """Enough vector sums to hide the latency of a multiply-add, and no more than the registers hold."""
    tiles = ((1, 8), (1, 4), (1, 2)) if w.m == 1 else ((4, 3), (4, 2), (2, 4))
    base: dict[str, KnobValue] = {"n_chunks": target.cores, "m_chunks": target.cores, "copy_a": False}
    return [{**base, "mr": mr, "nr": nr, "ku": ku, "kc": kc} for mr, nr in tiles for ku, kc in ((1, w.k), (1, 1024))]


def stream_wishes(w: GemmWorkload, target: Target) -> list[dict[str, KnobValue]]:
    tiles = ((1, 4), (1, 2)) if w.m == 1 else ((6, 2), (4, 3))
    base: dict[str, KnobValue] = {"n_chunks": target.cores}
    return [
        {**base, "mr": mr, "nv": nv, "kb": kb, "ku": ku} for mr, nv in tiles for kb, ku in ((8, 8), (16, 4), (32, 4))
    ]
