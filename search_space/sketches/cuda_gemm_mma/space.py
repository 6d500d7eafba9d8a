"""GEMM on any card from sm_80 on (A100, RTX 30, L40S, RTX 40, H100): 16-bit operands, float32 sums, any m, n, k."""

import math
from typing import Any

from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.sketches.cuda_gemm_mma.tile import (
    KIB,
    SHARED_BLOCK,
    SHARED_SM,
    THREADS_SM,
    UNIT,
    MmaTile,
)
from search_space.target import Target
from search_space.workload import Workload

HALF_TYPES = ("bfloat16", "float16")
INDEX_MAX = 2**31 - 1
_OVERHEAD_REGISTERS = 40  # addresses, counters, predicates: seen with nvcc 13.0

_WARP = Constraint(
    "warp_tile", "a warp's tile has whole blocks of 16 rows and of 16 columns (two mma, one ldmatrix.x4)"
)
_UNITS = Constraint(
    "units", "a row of a tile has 2, 4 or a multiple of 8 units of 16 bytes, or ldmatrix meets its own banks"
)
_REGISTERS = Constraint(
    "registers", "accumulators, two sets of fragments and addresses must fit what the launch bounds leave a thread"
)
_SHARED = Constraint("shared_memory", "stages must fit what the architecture gives one block, and all blocks one SM")
_THREADS = Constraint("threads", "between 64 and 1024 threads a block, and all blocks within what one SM holds")
_STAGING = Constraint(
    "staging", "a staged store writes 16-byte pieces of C (n a multiple of 8) through the stages' memory"
)

# block_m, block_n, block_k, warps_m, warps_n, stages, blocks_per_sm
_SEEDS = (
    (128, 128, 32, 2, 2, 4, 1),
    (128, 256, 32, 2, 4, 3, 1),
    (256, 128, 32, 4, 2, 3, 1),
    (128, 128, 64, 2, 2, 3, 1),
    (64, 128, 64, 2, 2, 3, 2),
    (64, 64, 64, 2, 2, 4, 2),
    (16, 64, 64, 1, 4, 6, 2),
    (32, 64, 64, 1, 4, 5, 2),
)


class CudaGemmMma(Sketch):
    name = "cuda_gemm_mma"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 1

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = gemm_of(workload)
        if target.arch not in SHARED_BLOCK:
            known = tuple(SHARED_BLOCK)
            return Refusal(
                "target.arch", f"mma.sync m16n8k16 on {', '.join(known)}, the device is {target.arch}", known
            )
        if w.dtype_a not in HALF_TYPES:
            return Refusal("dtype_a", f"16-bit operands only, got {w.dtype_a}", HALF_TYPES)
        if w.dtype_b != w.dtype_a:
            return Refusal("dtype_b", f"must be dtype_a ({w.dtype_a}), got {w.dtype_b}", (w.dtype_a,))
        if w.dtype_out != w.dtype_a:
            return Refusal("dtype_out", f"must be dtype_a ({w.dtype_a}), got {w.dtype_out}", (w.dtype_a,))
        if w.groups > 1:
            return Refusal("groups", "grouped GEMM has no sketch on this target yet", ("1",))
        if max(w.m * w.k, w.n * w.k, w.m * w.n) * w.batch > INDEX_MAX:
            return Refusal("m", "operands are indexed with 32 bits: at most 2^31 - 1 elements each")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm_of(workload)
        return (
            Knob("block_m", (16, 32, 64, 128, 256), "rows of C a block computes"),
            Knob("block_n", (32, 64, 96, 128, 192, 256), "columns of C a block computes"),
            Knob("block_k", (16, 32, 64), "elements of k in one pipeline stage"),
            Knob("warps_m", (1, 2, 4), "warps along m"),
            Knob("warps_n", (1, 2, 4), "warps along n"),
            Knob("stages", (2, 3, 4, 5, 6, 8), "pipeline stages in shared memory"),
            Knob("blocks_per_sm", (1, 2, 3), "blocks that share a multiprocessor (bounds the registers)"),
            Knob("store", ("direct",) if w.n % UNIT else ("direct", "staged"), "how C leaves"),
            Knob("group", (1, 4, 8, 16), "raster: tiles of one axis walked before the other advances"),
            Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = gemm_of(workload), tile_of(workload, knobs)
        if c.block_m % (16 * c.warps_m) or c.block_n % (16 * c.warps_n):
            return _WARP
        if any(not _even_units(cols // UNIT) for _, cols in (c.copied_a, c.copied_b)):
            return _UNITS
        if not 64 <= c.threads <= 1024 or c.threads * c.blocks_per_sm > THREADS_SM[target.arch]:
            return _THREADS
        if c.accumulators + c.fragments + c.held + _OVERHEAD_REGISTERS > c.register_limit or c.accumulators > 128:
            return _REGISTERS
        if c.shared_bytes() > shared_limit(target, c.blocks_per_sm):
            return _SHARED
        if c.store == "staged" and (
            w.n % UNIT or not _even_units(c.warp_n // UNIT) or c.block_m * c.block_n * 2 > c.shared_bytes()
        ):
            return _STAGING
        return None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = tile_of(workload, knobs)
        return Resources(c.register_limit, c.shared_bytes(), c.threads)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Memory: each operand once, plus what L2 cannot keep between tiles. L2: what every tile loads and stores."""
        w, c = gemm_of(workload), tile_of(workload, knobs)
        m_tiles, n_tiles = -(-w.m // c.block_m), -(-w.n // c.block_n)
        a, b, out = w.m * w.k * 2.0, w.n * w.k * 2.0, w.m * w.n * 2.0
        cached = float(target.l2_bytes or 4_000_000)
        reread = max(0.0, min(a, b) - cached) * min(m_tiles, n_tiles) / 8.0
        l2 = w.batch * (a * n_tiles + b * m_tiles + out)
        shared = w.batch * m_tiles * n_tiles * w.k * 2.0 * (c.block_m * c.warps_n + c.block_n * c.warps_m)
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
            "gpu.warp_intensity": c.warp_m * c.warp_n / (c.warp_m + c.warp_n),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, tiles / target.cores),
            "gpu.bytes_in_flight": float((c.stages - 1) * c.stage_bytes * c.blocks_per_sm),
            "gpu.stages_of_k": c.stages / k_steps,
            "gpu.accumulators": float(c.accumulators),
            "gpu.log_k_steps": math.log2(k_steps),
            "gpu.warps": float(c.warps * c.blocks_per_sm),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """None where the wgmma sketches apply: the search then meets this one by chance alone."""
        w = gemm_of(workload)
        if target.arch == "sm_90a" and w.k % 8 == 0 and w.n % 8 == 0 and w.m % 8 == 0:
            return ()
        store = "direct" if w.n % UNIT else "staged"
        chosen: list[Knobs] = []
        for block_m, block_n, block_k, warps_m, warps_n, stages, blocks in _SEEDS:
            for fewer in range(stages, 1, -1):
                knobs: Knobs = {
                    "block_m": block_m, "block_n": block_n, "block_k": block_k, "warps_m": warps_m, "warps_n": warps_n,
                    "stages": fewer, "blocks_per_sm": blocks, "store": store, "group": 8, "by_n": False,
                }  # fmt: skip
                if self.violated(workload, target, knobs) is None:
                    chosen.append(knobs)
                    break
        return tuple(chosen)


def gemm_of(workload: Workload) -> GemmWorkload:
    assert isinstance(workload, GemmWorkload)
    return workload


def _even_units(units: int) -> bool:
    return units in (2, 4) or (units > 0 and units % 8 == 0)


def shared_limit(target: Target, blocks: int) -> int:
    one = min(SHARED_BLOCK[target.arch] * KIB, target.shared_bytes or SHARED_BLOCK[target.arch] * KIB)
    return min(one, (SHARED_SM[target.arch] // blocks - 1) * KIB)


def _vector(inner: int) -> int:
    """Elements of one copy: the widest that every row's start is aligned for."""
    return next(v for v in (8, 4, 2, 1) if inner % v == 0)


def tile_of(workload: Workload, knobs: Knobs) -> MmaTile:
    w = gemm_of(workload)
    return MmaTile(
        block_m=int(knobs["block_m"]),
        block_n=int(knobs["block_n"]),
        block_k=int(knobs["block_k"]),
        warps_m=int(knobs["warps_m"]),
        warps_n=int(knobs["warps_n"]),
        stages=int(knobs["stages"]),
        blocks_per_sm=int(knobs["blocks_per_sm"]),
        store=str(knobs["store"]),
        trans_a=w.trans_a,
        trans_b=w.trans_b,
        vector_a=_vector(w.m if w.trans_a else w.k),
        vector_b=_vector(w.k if w.trans_b else w.n),
        even_n=w.n % 2 == 0,
        dtype=w.dtype_a,
        epilogue=w.epilogue,
    )


def launch_of(block_m: int, block_n: int, threads: int, shared_bytes: int, knobs: Knobs) -> dict[str, Any]:
    """One kernel, one block a tile; extents are formulas (`tilewright.runtime`)."""
    grid = ["mul", "batch", ["mul", ["ceildiv", "m", block_m], ["ceildiv", "n", block_n]]]
    values: dict[str, object] = {name: name for name in ("m", "n", "k", "batch")}
    values |= {"group": int(knobs["group"]), "by_n": int(bool(knobs["by_n"])), "grid": grid}
    pointers = {f"{name}_ptr": name.lower() for name in ("A", "B", "bias", "C")}
    kernel = {
        "symbol": "main_kernel",
        "grid": grid,
        "block": threads,
        "cluster": 1,
        "shared_bytes": shared_bytes,
        "dependent": False,
        "arguments": {
            **{name: {"kind": "pointer", "operand": operand} for name, operand in pointers.items()},
            **{name: {"kind": "int32", "value": value} for name, value in values.items()},
        },
    }
    return {"workspace": {}, "kernels": [kernel]}


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[MmaTile, dict[str, Any]]:
    """The tile and the launch description of a choice."""
    c = tile_of(workload, knobs)
    return c, launch_of(c.block_m, c.block_n, c.threads, c.shared_bytes(), knobs)


SKETCH = CudaGemmMma()
