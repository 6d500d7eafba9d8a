"""Decode GEMMs in float8 (m up to 128): reading B once is nearly all the work."""

import math

from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json
from search_space.hopper.limits import (
    CLUSTER_MAX,
    REGISTERS_SM,
    SHARED_BLOCK_BYTES,
    SHARED_RESERVED_BYTES,
    SHARED_SM_BYTES,
    ceildiv,
    resident_clusters,
    round_up,
)
from search_space.hopper.skinny8 import Skinny8
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.sketches.cuda_gemm_fp8.space import refuse_float8
from search_space.target import Target
from search_space.workload import Workload

_MOST_M = 128
_ROWS = Constraint(
    "rows", "a consumer warpgroup multiplies whole blocks of 64 rows of B, a rank stores whole rows of 8"
)
_PAD = Constraint("pad_m", "A is padded to a multiple of 8 rows that holds all of them (wgmma n)")
_ACCUMULATORS = Constraint(
    "accumulators", "sums, and products of two slabs where scales are per block, must fit a thread's registers"
)
_SLABS = Constraint("slabs", "with block scales the slabs of a stage take turns in two sets of registers")
# Beside the accumulators: addresses, ring positions, scales.
_BESIDE_ACCUMULATORS = 48
_SPLIT = Constraint("split", "every block of a split needs at least one stage of k")
_SHARED = Constraint(
    "shared_memory", "stages, exchange buffers and barriers must fit 227 KiB, and all blocks of an SM 228 KiB"
)
_STAGES = Constraint("stages", "at least two stages to overlap anything, 32 at most: one lane initialises one barrier")
_BUFFERS = Constraint("red_buffers", "one exchange buffer is enough only when no cluster has a second tile")
_DEPENDENT = Constraint(
    "dependent", "reading B before the previous kernel has ended is right only for constant weights"
)
# split, blocks_per_sm, slabs, red_buffers, rows
_SEEDS = (
    (2, 1, 2, 1, 64), (2, 1, 2, 2, 64), (2, 2, 2, 1, 64), (2, 2, 2, 2, 64), (1, 2, 2, 1, 64), (1, 1, 2, 1, 64),
    (2, 1, 4, 1, 64), (4, 1, 2, 1, 64), (1, 1, 2, 1, 128), (1, 1, 2, 1, 192), (2, 1, 2, 2, 128), (4, 1, 2, 2, 64),
    (1, 2, 4, 1, 64), (2, 2, 4, 2, 64),
)  # fmt: skip


class CudaGemmFp8Skinny(Sketch):
    name = "cuda_gemm_fp8_skinny"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k")
    complexity = 3

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := refuse_float8(workload, target)) is not None:
            return refused
        w = common.gemm_of(workload)
        if w.m > _MOST_M:
            return Refusal("m", f"at most {_MOST_M} rows of A, got {w.m}")
        if w.n % 2:
            return Refusal("n", "columns of C are stored in pairs: n must be even")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        smallest = round_up(w.m, 8)
        pads = tuple(p for p in (8, 16, 24, 32, 48, 64, 96, 128) if smallest <= p < 2 * smallest + 16)
        return (
            Knob("pad_m", pads, "rows of A the kernel is built for: it serves every m up to this"),
            Knob("rows", (64, 128, 192, 256), "rows of B (columns of C) in a tile"),
            Knob("slabs", (1, 2, 4), "slabs of 128 elements of k in one pipeline stage"),
            Knob("stages", (*range(2, 17), 20, 24, 28, 32), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("split", (1, 2, 4, 8), "blocks of a cluster that divide k among them"),
            Knob("blocks_per_sm", (1, 2), "blocks that share a multiprocessor"),
            Knob("red_buffers", (1, 2), "exchange buffers for partial sums"),
            Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        if c.rows % (64 * c.consumers) or c.rows % (8 * c.split) or c.split > CLUSTER_MAX:
            return _ROWS
        if c.pad_m < w.m or c.pad_m % 8:
            return _PAD
        if c.accumulators + c.pad_m // 2 * (c.scales == "block") + _BESIDE_ACCUMULATORS > register_limit(c):
            return _ACCUMULATORS
        if c.scales == "block" and c.slabs % 2:
            return _SLABS
        if c.split > ceildiv(w.k, 128 * c.slabs):
            return _SPLIT
        if knobs["dependent"] and not w.b_constant:
            return _DEPENDENT
        limit = min(SHARED_BLOCK_BYTES, target.shared_bytes or SHARED_BLOCK_BYTES)
        if c.shared_bytes() > min(limit, SHARED_SM_BYTES // c.blocks_per_sm - SHARED_RESERVED_BYTES):
            return _SHARED
        if not 2 <= c.stages <= 32:
            return _STAGES
        tiles = ceildiv(w.n, c.rows)
        single = tiles <= resident_clusters(c.split, target.cores, c.blocks_per_sm)
        return _BUFFERS if c.split > 1 and c.red_buffers == 1 and not single else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = skinny_of(workload, knobs)
        return Resources(register_limit(c), c.shared_bytes(), c.threads)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        tiles = ceildiv(w.n, c.rows)
        exchanged = tiles * c.rows * c.pad_m * 4.0 * (c.split - 1)
        memory = float(w.footprint_bytes())
        return Traffic(memory_bytes=memory, l2_bytes=memory + float(c.pad_m * w.k * tiles) + exchanged)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        tiles = ceildiv(w.n, c.rows)
        waves = tiles / resident_clusters(c.split, target.cores, c.blocks_per_sm)
        k_steps = ceildiv(w.k, 128 * c.slabs)
        return {
            "tile.m": float(c.pad_m),
            "tile.n": float(c.rows),
            "tile.k": 128.0 * c.slabs,
            "tile.waste": 1.0 - w.m * w.n / (c.pad_m * tiles * c.rows),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, tiles * c.split / (target.cores * c.blocks_per_sm)),
            "gpu.cluster": float(c.split),
            "gpu.split": float(c.split),
            "gpu.bytes_in_flight": float(c.stages * c.b_bytes * c.blocks_per_sm),
            "gpu.stages_of_k": c.stages * c.split / k_steps,
            "gpu.accumulators": float(c.accumulators),
            "gpu.log_k_steps": math.log2(k_steps),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        pad = round_up(common.gemm_of(workload).m, 8)
        chosen: list[Knobs] = []
        for split, blocks, slabs, buffers, rows in _SEEDS:
            knobs: Knobs = {
                "pad_m": next(p for p in (8, 16, 24, 32, 48, 64, 96, 128) if p >= pad), "rows": rows, "slabs": slabs,
                "stages": 2, "consumers": 1, "split": split, "blocks_per_sm": blocks, "red_buffers": buffers,
                "dependent": False,
            }  # fmt: skip
            if (filled := common.most_stages(self, workload, target, knobs)) is not None:
                chosen.append(filled)
        return tuple(chosen)


def register_limit(c: Skinny8) -> int:
    """Registers that the launch bound leaves a thread."""
    return min(255, REGISTERS_SM // (c.threads * c.blocks_per_sm))


def skinny_of(workload: Workload, knobs: Knobs) -> Skinny8:
    w = common.gemm_of(workload)
    return Skinny8(
        pad_m=int(knobs["pad_m"]),
        rows=int(knobs["rows"]),
        slabs=int(knobs["slabs"]),
        stages=int(knobs["stages"]),
        consumers=int(knobs["consumers"]),
        split=int(knobs["split"]),
        blocks_per_sm=int(knobs["blocks_per_sm"]),
        red_buffers=int(knobs["red_buffers"]),
        early_b=bool(knobs["dependent"]),
        dtype_out=w.dtype_out,
        scales=w.scales,
        epilogue=w.epilogue,
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Skinny8, Json]:
    """The tile and the launch description of a choice."""
    c = skinny_of(workload, knobs)
    return c, c.launch(target.cores, dependent=bool(knobs["dependent"]))


SKETCH = CudaGemmFp8Skinny()
