"""float32 GEMM with float32 products, on any card from sm_80 on; any m, n, k."""

import math
from typing import Any

from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.sketches.cuda_gemm_mma.space import INDEX_MAX, gemm_of, launch_of, shared_limit
from search_space.sketches.cuda_gemm_mma.tile import SHARED_BLOCK, THREADS_SM
from search_space.sketches.cuda_gemm_simt.tile import LANES_M, LANES_N, QUAD, SimtTile
from search_space.target import Target
from search_space.workload import Workload

# Counters, bounds and pointers, and what each copy of a stage keeps: below this nvcc 13.0 was seen to spill.
_OVERHEAD_REGISTERS, _COPY_REGISTERS = 24, 4

_WARP = Constraint("warp_tile", "a warp is 4 x 8 threads: its tile has whole multiples of their register tiles")
_REGISTERS = Constraint(
    "registers", "accumulators, fragments and addresses must fit what the launch bounds leave a thread"
)
_SHARED = Constraint("shared_memory", "stages must fit what the architecture gives one block, and all blocks one SM")
_THREADS = Constraint("threads", "between 64 and 1024 threads a block, and all blocks within what one SM holds")
_COPIES = Constraint("copies", "a stage has at least half an element for each thread to copy, or most of them idle")

# block_m, block_n, block_k, thread_m, thread_n, stages, fragment_sets, blocks_per_sm
_SEEDS = (
    (128, 128, 16, 8, 8, 4, 2, 1),
    (128, 128, 8, 8, 8, 4, 1, 1),
    (128, 256, 8, 16, 8, 4, 1, 1),
    (256, 128, 8, 8, 16, 4, 1, 1),
    (128, 128, 4, 8, 8, 6, 1, 2),
    (128, 64, 8, 8, 8, 6, 1, 3),
    (64, 64, 8, 8, 4, 6, 2, 3),
    (32, 64, 16, 4, 4, 4, 2, 3),
)


class CudaGemmSimt(Sketch):
    name = "cuda_gemm_simt"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 1

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = gemm_of(workload)
        if target.arch not in SHARED_BLOCK:
            known = tuple(SHARED_BLOCK)
            return Refusal("target.arch", f"cp.async on {', '.join(known)}, the device is {target.arch}", known)
        for field in ("dtype_a", "dtype_b", "dtype_out"):
            if getattr(w, field) != "float32":
                return Refusal(field, f"float32 throughout, got {getattr(w, field)}", ("float32",))
        if w.groups > 1:
            return Refusal("groups", "grouped GEMM has no sketch on this target yet", ("1",))
        if max(w.m * w.k, w.n * w.k, w.m * w.n) * w.batch > INDEX_MAX:
            return Refusal("m", "operands are indexed with 32 bits: at most 2^31 - 1 elements each")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("block_m", (16, 32, 64, 128, 256), "rows of C a block computes"),
            Knob("block_n", (32, 64, 128, 256), "columns of C a block computes"),
            Knob("block_k", (4, 8, 16, 32), "elements of k in one pipeline stage"),
            Knob("thread_m", (4, 8, 16), "rows of C a thread computes"),
            Knob("thread_n", (4, 8, 16), "columns of C a thread computes"),
            Knob("stages", (2, 3, 4, 5, 6), "pipeline stages in shared memory"),
            Knob("fragment_sets", (1, 2), "operand fragments in registers: the next read while these are multiplied"),
            Knob("blocks_per_sm", (1, 2, 3, 4), "blocks that share a multiprocessor (bounds the registers)"),
            Knob("group", (1, 4, 8, 16), "raster: tiles of one axis walked before the other advances"),
            Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        c = tile_of(workload, knobs)
        if c.block_m % (LANES_M * c.thread_m) or c.block_n % (LANES_N * c.thread_n):
            return _WARP
        if not 64 <= c.threads <= 1024 or c.threads * c.blocks_per_sm > THREADS_SM[target.arch]:
            return _THREADS
        needed = c.accumulators + c.fragments + _OVERHEAD_REGISTERS + _COPY_REGISTERS * c.copies
        if needed > c.register_limit:
            return _REGISTERS
        if c.shared_bytes() > shared_limit(target, c.blocks_per_sm):
            return _SHARED
        if 2 * c.block_k * min(c.block_m, c.block_n) < c.threads:
            return _COPIES
        return None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = tile_of(workload, knobs)
        return Resources(c.register_limit, c.shared_bytes(), c.threads)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Memory: each operand once, plus what L2 cannot keep between tiles. L2: every tile's loads and stores. L1:
        what threads read from shared memory, broadcasts within a warp counted once."""
        w, c = gemm_of(workload), tile_of(workload, knobs)
        m_tiles, n_tiles = -(-w.m // c.block_m), -(-w.n // c.block_n)
        a, b, out = w.m * w.k * 4.0, w.n * w.k * 4.0, w.m * w.n * 4.0
        cached = float(target.l2_bytes or 4_000_000)
        reread = max(0.0, min(a, b) - cached) * min(m_tiles, n_tiles) / 8.0
        l2 = w.batch * (a * n_tiles + b * m_tiles + out)
        shared = w.batch * m_tiles * n_tiles * w.k * 4.0 * (c.block_m * c.warps_n + c.block_n * c.warps_m)
        return Traffic(memory_bytes=w.batch * (a + b + out + reread), l2_bytes=l2, l1_bytes=shared)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = gemm_of(workload), tile_of(workload, knobs)
        tiles = w.batch * -(-w.m // c.block_m) * -(-w.n // c.block_n)
        waves = tiles / (target.cores * c.blocks_per_sm)
        k_steps = -(-w.k // c.block_k)
        return {
            "tile.m": float(c.block_m),
            "tile.n": float(c.block_n),
            "tile.k": float(c.block_k),
            "tile.waste": 1.0 - w.batch * w.m * w.n / (tiles * c.block_m * c.block_n),
            "tile.intensity": c.block_m * c.block_n / (c.block_m + c.block_n),
            "gpu.warp_intensity": c.thread_m * c.thread_n / (c.thread_m + c.thread_n),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, tiles / target.cores),
            "gpu.bytes_in_flight": float((c.stages - 1) * c.shared_bytes() / c.stages * c.blocks_per_sm),
            "gpu.stages_of_k": c.stages / k_steps,
            "gpu.accumulators": float(c.accumulators),
            "gpu.log_k_steps": math.log2(k_steps),
            "gpu.warps": float(c.threads // 32 * c.blocks_per_sm),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        chosen: list[Knobs] = []
        for block_m, block_n, block_k, thread_m, thread_n, stages, sets, blocks in _SEEDS:
            knobs: Knobs = {
                "block_m": block_m, "block_n": block_n, "block_k": block_k, "thread_m": thread_m, "thread_n": thread_n,
                "stages": stages, "fragment_sets": sets, "blocks_per_sm": blocks, "group": 8, "by_n": False,
            }  # fmt: skip
            if self.violated(workload, target, knobs) is None:
                chosen.append(knobs)
        return tuple(chosen)


def tile_of(workload: Workload, knobs: Knobs) -> SimtTile:
    w = gemm_of(workload)
    return SimtTile(
        block_m=int(knobs["block_m"]),
        block_n=int(knobs["block_n"]),
        block_k=int(knobs["block_k"]),
        thread_m=int(knobs["thread_m"]),
        thread_n=int(knobs["thread_n"]),
        stages=int(knobs["stages"]),
        blocks_per_sm=int(knobs["blocks_per_sm"]),
        trans_a=w.trans_a,
        trans_b=w.trans_b,
        quads_a=w.trans_a and w.m % QUAD == 0,
        quads_b=not w.trans_b and w.n % QUAD == 0,
        quads_c=w.n % QUAD == 0,
        fragment_sets=int(knobs["fragment_sets"]),
        epilogue=w.epilogue,
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[SimtTile, dict[str, Any]]:
    """The tile and the launch description of a choice; extents are formulas (`tilewright.runtime`)."""
    c = tile_of(workload, knobs)
    return c, launch_of(c.block_m, c.block_n, c.threads, c.shared_bytes(), knobs)


SKETCH = CudaGemmSimt()
