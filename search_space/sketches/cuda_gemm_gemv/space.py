"""GEMV (m up to 4): B is read once, straight to registers; neither its rows nor their number need be aligned."""

import math

from search_space.hopper import gemm_space as common
from search_space.hopper.gemv import WARP, Gemv
from search_space.hopper.launch import Json
from search_space.hopper.limits import INDEX_MAX, REGISTERS_SM, SHARED_BLOCK_BYTES, ceildiv
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

_MOST_M = 4
# Beside the data: addresses, loop counters, predicates.
_BESIDE_DATA = 32
_THREADS_MAX = 1024
_THREADS_SM = 2048
_SPLIT = Constraint("split", "warps that share columns of C divide the block's warps")
_THREADS = Constraint("threads", "a block has at most 1024 threads")
_REGISTERS = Constraint("registers", "loads in flight and sums must fit a thread's registers, or ptxas spills")
_SHARED = Constraint("shared_memory", "float32 partial sums of all parts must fit the 227 KiB a block can have")
_IDLE = Constraint("idle", "every part of a split needs at least one load of k, or its warps only wait")
_DEPENDENT = Constraint(
    "dependent", "reading B before the previous kernel has ended is right only for constant weights"
)


def widest_load(w_inner: int) -> int:
    """Elements of the widest aligned load of rows of `w_inner` 16-bit elements: 8 (16 bytes), 4, 2 or 1."""
    return next(v for v in (8, 4, 2, 1) if w_inner % v == 0)


class CudaGemmGemv(Sketch):
    name = "cuda_gemm_gemv"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("n", "k", "batch")
    complexity = 1

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := common.refuse_types(workload, target)) is not None:
            return refused
        w = common.gemm_of(workload)
        if w.m > _MOST_M:
            return Refusal("m", f"at most {_MOST_M} rows of A, got {w.m}")
        if w.trans_a and w.m > 1:
            return Refusal("trans_a", "A must be stored [m, k]", ("false",))
        if w.batch * w.n * w.k > INDEX_MAX:
            return Refusal("n", "B has more elements than 32-bit indices address")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        early = Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch")
        if w.trans_b:
            return (
                Knob("warps", (1, 2, 4, 8, 16), "warps of a block"),
                Knob("split", (1, 2, 4, 8, 16), "warps that divide k among them"),
                Knob("rows", (1, 2, 4, 8), "rows of B (columns of C) a warp reads at a time"),
                Knob("unroll", (1, 2, 4, 8), "loads in flight of each of these rows, for each lane"),
                early,
            )
        return (
            Knob("warps", (4, 8, 16, 32), "warps of a block, which divide k among them"),
            Knob("lanes", (2, 4, 8, 16, 32), "lanes of a warp along n; the others divide k among them"),
            Knob("unroll", (1, 2, 4, 8, 16), "rows of B in flight for each lane"),
            early,
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = common.gemm_of(workload), gemv_of(workload, knobs)
        if c.warps % c.split:
            return _SPLIT
        if c.threads > _THREADS_MAX:
            return _THREADS
        if c.registers + _BESIDE_DATA > register_limit(c):
            return _REGISTERS
        if c.shared_bytes() > min(SHARED_BLOCK_BYTES, target.shared_bytes or SHARED_BLOCK_BYTES):
            return _SHARED
        if c.trans_b and c.split > 1 and (c.split - 1) * WARP * c.vector >= w.k:
            return _IDLE
        return _DEPENDENT if knobs["dependent"] and not w.b_constant else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = gemv_of(workload, knobs)
        return Resources(register_limit(c), c.shared_bytes(), c.threads)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """A comes from L2 once for each block (L1 keeps it for the block's warps)."""
        w, c = common.gemm_of(workload), gemv_of(workload, knobs)
        a, b, out = w.m * w.k * 2.0, w.n * w.k * 2.0, w.m * w.n * 2.0
        blocks = ceildiv(w.n, c.columns)
        return Traffic(memory_bytes=w.batch * (a + b + out), l2_bytes=w.batch * (a * blocks + b + out))

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = common.gemm_of(workload), gemv_of(workload, knobs)
        blocks = w.batch * ceildiv(w.n, c.columns)
        at_once = target.cores * blocks_at_once(c)
        waves = blocks / at_once
        loads = w.k / (WARP * c.vector * c.split) if c.trans_b else w.k * c.lanes / (WARP * c.warps)
        return {
            "tile.m": float(w.m),
            "tile.n": float(c.columns),
            "tile.waste": 1.0 - w.batch * w.n / (blocks * c.columns),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, blocks / target.cores),
            "gpu.split": float(c.parts),
            "gpu.load_bytes": 2.0 * c.vector,
            "gpu.bytes_in_flight": float(c.bytes_in_flight * min(blocks_at_once(c), ceildiv(blocks, target.cores))),
            "gpu.loads_of_k": loads / c.unroll,
            "gpu.accumulators": float(c.m * (c.rows if c.trans_b else c.vector)),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """Blocks enough for all multiprocessors, then as many bytes in flight as registers hold."""
        w = common.gemm_of(workload)
        choices = (
            [{"warps": p, "split": s, "rows": r, "unroll": u} for p, s, r, u in _ROW_SEEDS]
            if w.trans_b
            else [{"warps": p, "lanes": n, "unroll": u} for p, n, u in _COLUMN_SEEDS]
        )
        legal: list[Knobs] = [{**knobs, "dependent": False} for knobs in choices]
        return tuple(k for k in legal if self.violated(workload, target, k) is None)


# (warps, split, rows, unroll) and (warps, lanes, unroll)
_ROW_SEEDS = ((4, 4, 2, 4), (8, 8, 4, 2), (4, 1, 2, 4), (8, 4, 2, 4), (4, 2, 4, 2), (8, 8, 1, 4), (4, 4, 1, 4))
_COLUMN_SEEDS = ((16, 4, 8), (16, 8, 8), (32, 4, 4), (8, 8, 8), (16, 16, 8), (8, 4, 8), (32, 8, 4))


def register_limit(c: Gemv) -> int:
    """Registers a thread that one block of this size leaves each of its threads."""
    return min(255, REGISTERS_SM // max(c.threads, 4 * WARP))


def blocks_at_once(c: Gemv) -> int:
    """Blocks of one multiprocessor that run together, by threads and registers."""
    used = min(255, c.registers + _BESIDE_DATA)
    return max(1, min(32, _THREADS_SM // c.threads, REGISTERS_SM // (used * c.threads)))


def gemv_of(workload: Workload, knobs: Knobs) -> Gemv:
    w = common.gemm_of(workload)
    # A single row of A is the same memory in both orders.
    inner = w.k if w.trans_b else w.n
    return Gemv(
        m=w.m,
        vector=widest_load(inner),
        rows=int(knobs.get("rows", 1)),
        unroll=int(knobs["unroll"]),
        warps=int(knobs["warps"]),
        split=int(knobs.get("split", 1)),
        lanes=int(knobs.get("lanes", WARP)),
        trans_b=w.trans_b,
        dtype=w.dtype_a,
        epilogue=w.epilogue,
        batched=w.batch > 1,
        early_b=bool(knobs["dependent"]),
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Gemv, Json]:
    """The walk over B and the launch description of a choice."""
    c = gemv_of(workload, knobs)
    return c, c.launch(bool(knobs["dependent"]))


SKETCH = CudaGemmGemv()
