"""Decode GEMMs (m up to 256): reading B once is nearly all the work."""

import math

from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json, skinny_launch
from search_space.hopper.limits import (
    CLUSTER_MAX,
    INDEX_MAX,
    SHARED_BLOCK_BYTES,
    SHARED_RESERVED_BYTES,
    SHARED_SM_BYTES,
    ceildiv,
    resident_clusters,
    round_up,
)
from search_space.hopper.skinny import Skinny
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

_MOST_M = 256
_ROWS = Constraint(
    "rows", "a consumer warpgroup multiplies whole blocks of 64 rows of B, a rank stores whole rows of 8"
)
_PAD = Constraint(
    "pad_m", "A is padded to whole 8-row slices for each block that shares it, and at most 256 rows (wgmma n)"
)
_ACCUMULATORS = Constraint("accumulators", "128 float32 accumulators a thread at most, half with two blocks an SM")
_CLUSTER = Constraint("cluster", "a portable cluster has at most 8 blocks")
_SPLIT = Constraint("split", "every block of a split needs at least one stage of k")
_SHARED = Constraint(
    "shared_memory", "stages, exchange buffers and barriers must fit 227 KiB, and all blocks of an SM 228 KiB"
)
_STAGES = Constraint("stages", "at least two stages to overlap anything, 32 at most: one lane initialises one barrier")
_BUFFERS = Constraint("red_buffers", "one exchange buffer is enough only when no cluster has a second tile")
_DEPENDENT = Constraint(
    "dependent", "reading B before the previous kernel has ended is right only for constant weights"
)
_INDEX = Constraint("index", "C is indexed with 32 bits")


class CudaGemmSkinny(Sketch):
    name = "cuda_gemm_skinny"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k")
    complexity = 3

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := common.refuse_types(workload, target)) is not None:
            return refused
        w = common.gemm_of(workload)
        if w.m > _MOST_M:
            return Refusal("m", f"at most {_MOST_M} rows of A, got {w.m}")
        if w.batch > 1:
            return Refusal("batch", "one matrix a call, got a batch", ("1",))
        if w.trans_a:
            return Refusal("trans_a", "A must be stored [m, k]", ("false",))
        if w.k % 8 or w.n % (2 if w.trans_b else 8):
            field = "k" if w.k % 8 else "n"
            return Refusal(field, f"rows of a multiple of 16 bytes (TMA): {field} must be a multiple of 8")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        smallest = round_up(w.m, 8)
        pads = tuple(p for p in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if smallest <= p < 2 * smallest + 16)
        return (
            Knob("pad_m", pads, "rows of A the kernel is built for: it serves every m up to this"),
            Knob("rows", (64, 128, 192, 256), "rows of B (columns of C) in a tile"),
            Knob("block_k", (64, 128, 256), "elements of k in one pipeline stage"),
            Knob("stages", (*range(2, 17), 20, 24, 28, 32), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("split", (1, 2, 4, 8), "blocks of a cluster that divide k among them"),
            Knob("share", (1, 2, 4), "neighbouring tiles of a cluster that get A by multicast"),
            Knob("blocks_per_sm", (1, 2), "blocks that share a multiprocessor"),
            Knob("red_buffers", (1, 2), "exchange buffers for partial sums"),
            Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        if c.rows % (64 * c.consumers) or c.rows % (8 * c.split) or c.rows > 256:
            return _ROWS
        if c.pad_m < w.m or c.pad_m % (8 * c.share) or c.pad_m > _MOST_M:
            return _PAD
        if c.cluster > CLUSTER_MAX:
            return _CLUSTER
        if c.accumulators > 128 // c.blocks_per_sm or (c.blocks_per_sm == 2 and c.consumers == 2 and c.pad_m >= 128):
            return _ACCUMULATORS
        if c.split > ceildiv(w.k, c.block_k):
            return _SPLIT
        if w.m * w.n > INDEX_MAX:
            return _INDEX
        if knobs["dependent"] and not w.b_constant:
            return _DEPENDENT
        return _memory_violation(workload, target, c)

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = skinny_of(workload, knobs)
        registers = min(255, 65536 // (c.threads * c.blocks_per_sm))
        return Resources(registers, c.shared_bytes(), c.threads)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        a, b, out = w.m * w.k * 2.0, w.n * w.k * 2.0, w.m * w.n * 2.0
        a_reads = c.pad_m * w.k * 2.0 * ceildiv(w.n, c.rows) / c.share
        exchanged = ceildiv(w.n, c.rows) * c.rows * c.pad_m * 4.0 * (c.split - 1)
        return Traffic(memory_bytes=a + b + out, l2_bytes=a_reads + b + out + exchanged)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = common.gemm_of(workload), skinny_of(workload, knobs)
        tiles = ceildiv(w.n, c.rows * c.share)
        clusters = resident_clusters(c.cluster, target.cores, c.blocks_per_sm)
        waves = tiles / clusters
        k_steps = ceildiv(w.k, c.block_k)
        return {
            "tile.m": float(c.pad_m),
            "tile.n": float(c.rows),
            "tile.k": float(c.block_k),
            "tile.waste": 1.0 - w.m * w.n / (c.pad_m * tiles * c.rows * c.share),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, tiles * c.cluster / (target.cores * c.blocks_per_sm)),
            "gpu.cluster": float(c.cluster),
            "gpu.split": float(c.split),
            "gpu.bytes_in_flight": float(c.stages * c.b_bytes * c.blocks_per_sm),
            "gpu.stages_of_k": c.stages * c.split / k_steps,
            "gpu.accumulators": float(c.accumulators),
            "gpu.log_k_steps": math.log2(k_steps),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        pad = round_up(common.gemm_of(workload).m, 8)
        chosen: list[Knobs] = []
        for split, share, blocks, block_k, buffers in (
            (2, 1, 1, 128, 1), (2, 1, 1, 128, 2), (2, 1, 2, 128, 2), (1, 1, 1, 128, 1), (1, 1, 2, 128, 1),
            (4, 1, 1, 128, 1), (8, 1, 1, 64, 1), (1, 2, 1, 64, 1),
        ):  # fmt: skip
            knobs: Knobs = {
                "pad_m": round_up(pad, 8 * share), "rows": 64, "block_k": block_k, "stages": 2, "consumers": 1,
                "split": split, "share": share, "blocks_per_sm": blocks, "red_buffers": buffers, "dependent": False,
            }  # fmt: skip
            filled = common.most_stages(self, workload, target, knobs)
            if filled is not None:
                chosen.append(filled)
        return tuple(chosen)


def _memory_violation(workload: Workload, target: Target, c: Skinny) -> Constraint | None:
    w = common.gemm_of(workload)
    a_block = SHARED_SM_BYTES // c.blocks_per_sm - SHARED_RESERVED_BYTES
    if c.shared_bytes() > min(a_block, target.shared_bytes or SHARED_BLOCK_BYTES):
        return _SHARED
    rounds = ceildiv(ceildiv(w.n, c.rows * c.share), resident_clusters(c.cluster, target.cores, c.blocks_per_sm))
    if not 2 <= c.stages <= 32:
        return _STAGES
    if (rounds > 1 and c.split > 1 and c.red_buffers < 2) or (c.split == 1 and c.red_buffers > 1):
        return _BUFFERS
    return None


def skinny_of(workload: Workload, knobs: Knobs) -> Skinny:
    w = common.gemm_of(workload)
    return Skinny(
        pad_m=int(knobs["pad_m"]),
        rows=int(knobs["rows"]),
        block_k=int(knobs["block_k"]),
        stages=int(knobs["stages"]),
        consumers=int(knobs["consumers"]),
        split=int(knobs["split"]),
        share=int(knobs["share"]),
        blocks_per_sm=int(knobs["blocks_per_sm"]),
        red_buffers=int(knobs["red_buffers"]),
        early_b=bool(knobs["dependent"]),
        trans_b=w.trans_b,
        dtype=w.dtype_a,
        epilogue=w.epilogue,
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Skinny, Json]:
    """The tile and the launch description of a choice."""
    c = skinny_of(workload, knobs)
    return c, skinny_launch(c, target.cores, dependent=bool(knobs["dependent"]))


SKETCH = CudaGemmSkinny()
