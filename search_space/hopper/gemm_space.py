"""What the Hopper tile GEMM sketches have in common: which workloads, which constraints, what a choice costs."""

import math

from search_space.gemm import GemmWorkload
from search_space.hopper.limits import (
    CLUSTER_MAX,
    INDEX_MAX,
    SHARED_BLOCK_BYTES,
    TMA_BOX,
    ceildiv,
    resident_clusters,
)
from search_space.hopper.tiles import ACCUMULATORS, Tile
from search_space.knob import Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

HALF_TYPES = ("bfloat16", "float16")


def gemm_of(workload: Workload) -> GemmWorkload:
    assert isinstance(workload, GemmWorkload)
    return workload


def refuse_types(workload: Workload, target: Target) -> Refusal | None:
    """wgmma on 16-bit operands, one type throughout; neither groups nor scales."""
    w = gemm_of(workload)
    if target.arch not in ("sm_90", "sm_90a"):
        return Refusal("target.arch", f"wgmma and TMA need sm_90a, the device is {target.arch}", ("sm_90a",))
    if w.dtype_a not in HALF_TYPES:
        return Refusal("dtype_a", f"16-bit operands only, got {w.dtype_a}", HALF_TYPES)
    if w.dtype_b != w.dtype_a:
        return Refusal("dtype_b", f"must be dtype_a ({w.dtype_a}), got {w.dtype_b}", (w.dtype_a,))
    if w.dtype_out != w.dtype_a:
        return Refusal("dtype_out", f"must be dtype_a ({w.dtype_a}), got {w.dtype_out}", (w.dtype_a,))
    if w.groups > 1:
        return Refusal("groups", "grouped GEMM has no sketch on this target yet", ("1",))
    return None


def unaligned_operands(w: GemmWorkload) -> tuple[str, ...]:
    """Operands whose rows TMA cannot read: their stride is not a multiple of 16 bytes."""
    a, b = (w.m if w.trans_a else w.k), (w.k if w.trans_b else w.n)
    return tuple(name for name, inner in (("a", a), ("b", b)) if inner % 8)


def tile_of(workload: Workload, knobs: Knobs, *, stream_k: bool = False) -> Tile:
    w = gemm_of(workload)
    return Tile(
        block_m=int(knobs["block_m"]),
        block_n=int(knobs["block_n"]),
        block_k=int(knobs["block_k"]),
        stages=int(knobs["stages"]),
        consumers=int(knobs["consumers"]),
        pingpong=knobs.get("schedule") == "pingpong",
        cluster_m=int(knobs["cluster_m"]),
        cluster_n=int(knobs["cluster_n"]),
        store=str(knobs["store"]),
        trans_a=w.trans_a,
        trans_b=w.trans_b,
        dtype=w.dtype_a,
        epilogue=w.epilogue,
        batched=w.batch > 1,
        stream_k=stream_k,
        early_b=bool(knobs.get("dependent", False)),
    )


_ROWS = Constraint("rows", "a consumer warpgroup multiplies whole blocks of 64 rows (wgmma m64)")
_PINGPONG = Constraint("pingpong", "ping-pong needs two consumers and two tiles for each block to alternate between")
_ACCUMULATORS = Constraint(
    "accumulators", "float32 accumulators and addresses must fit a thread's registers, or ptxas spills"
)
_SHARED = Constraint("shared_memory", "stages of A and B, staging and barriers must fit the 227 KiB a block can have")
_STAGES = Constraint("stages", "a ring of fewer than two stages overlaps nothing")
_CLUSTER = Constraint("cluster", "a portable cluster has at most 8 blocks, and needs as many neighbouring tiles")
_SLICE = Constraint(
    "multicast_slice", "each block of a cluster loads a slice of whole 8-row swizzle atoms (1024 bytes)"
)
_BOX = Constraint("tma_box", "a TMA box has at most 256 rows")
_SLABS = Constraint("slabs", "an operand whose contiguous axis is m or n is loaded in slabs of 64 (128-byte swizzle)")
_STORE = Constraint("store_alignment", "bulk stores need rows of C of a multiple of 16 bytes, 4-byte stores an even n")
_INDEX = Constraint("index", "plain stores index C with 32 bits")
_DEPENDENT = Constraint(
    "dependent", "reading B before the previous kernel has ended is right only for constant weights"
)


def tile_violation(workload: Workload, target: Target, c: Tile, dependent: bool) -> Constraint | None:
    """The first constraint of a warp-specialised tile that `c` breaks."""
    w = gemm_of(workload)
    return (
        _shape_violation(c)
        or _cluster_violation(w, c)
        or _memory_violation(target, c)
        or _store_violation(w, c)
        or (_DEPENDENT if dependent and not w.b_constant else None)
    )


def _shape_violation(c: Tile) -> Constraint | None:
    if c.block_m % c.row_step:
        return _ROWS
    if c.pingpong and c.consumers != 2:
        return _PINGPONG
    if c.accumulators > ACCUMULATORS[c.consumers]:
        return _ACCUMULATORS
    if (not c.trans_b and c.block_n % 64) or (c.trans_a and c.block_m % 64):
        return _SLABS
    return None


def _cluster_violation(w: GemmWorkload, c: Tile) -> Constraint | None:
    if c.cluster > CLUSTER_MAX:
        return _CLUSTER
    if c.cluster_m > ceildiv(w.m, c.block_m) or c.cluster_n > ceildiv(w.n, c.block_n):
        return _CLUSTER
    a_rows = c.block_k if c.trans_a else c.block_m
    b_rows = c.block_n if c.trans_b else c.block_k
    if a_rows % (8 * c.cluster_n) or b_rows % (8 * c.cluster_m):
        return _SLICE
    if a_rows // c.cluster_n > TMA_BOX or b_rows // c.cluster_m > TMA_BOX:
        return _BOX
    return None


def _memory_violation(target: Target, c: Tile) -> Constraint | None:
    if c.shared_bytes() > min(SHARED_BLOCK_BYTES, target.shared_bytes or SHARED_BLOCK_BYTES):
        return _SHARED
    return _STAGES if c.stages < 2 else None


def _store_violation(w: GemmWorkload, c: Tile) -> Constraint | None:
    if (c.store == "tma" and w.n % 8) or (c.store == "direct" and w.n % 2):
        return _STORE
    if c.store != "tma" and w.batch * w.m * w.n > INDEX_MAX:
        return _INDEX
    return None


def tiles_of(w: GemmWorkload, c: Tile) -> int:
    """Blocks' tiles, the padding to whole clusters counted."""
    across = ceildiv(w.m, c.block_m * c.cluster_m) * ceildiv(w.n, c.block_n * c.cluster_n)
    return w.batch * across * c.cluster


def tile_resources(w: GemmWorkload, target: Target, c: Tile) -> Resources:
    """Registers a thread: what setmaxnreg or the launch bound gives a consumer."""
    blocks = resident_clusters(c.cluster, target.cores) * c.cluster
    workspace = blocks * (c.partial_bytes() + 16 * c.consumers) if c.stream_k else 0
    registers = 240 if c.consumers == 2 else 255
    return Resources(registers, c.shared_bytes(), c.threads, workspace)


def tile_traffic(w: GemmWorkload, target: Target, c: Tile) -> Traffic:
    """Memory: each operand once, plus what a wave of tiles cannot keep in L2. L2: every tile's loads, a multicast
    counted once, and stream-K's partial sums written and read."""
    m_tiles, n_tiles = ceildiv(w.m, c.block_m), ceildiv(w.n, c.block_n)
    a, b, out = w.m * w.k * 2.0, w.n * w.k * 2.0, w.m * w.n * 2.0
    l2 = w.batch * (a * n_tiles / c.cluster_n + b * m_tiles / c.cluster_m + out)
    if c.stream_k:
        l2 += 2.0 * target.cores * c.partial_bytes()
    cached = max(1.0, float(target.l2_bytes or 50_000_000))
    reread = max(0.0, min(a, b) - cached) * min(m_tiles, n_tiles) / 8.0
    return Traffic(memory_bytes=w.batch * (a + b + out + reread), l2_bytes=l2)


def tile_features(w: GemmWorkload, target: Target, c: Tile) -> dict[str, float]:
    clusters = resident_clusters(c.cluster, target.cores)
    cluster_tiles = tiles_of(w, c) / c.cluster
    waves = cluster_tiles / clusters
    useful = w.batch * w.m * w.n / (cluster_tiles * c.cluster * c.block_m * c.block_n)
    k_steps = ceildiv(w.k, c.block_k)
    full = waves if c.stream_k else math.ceil(waves)
    return {
        "tile.m": float(c.block_m),
        "tile.n": float(c.block_n),
        "tile.k": float(c.block_k),
        "tile.waste": 1.0 - useful,
        "tile.intensity": c.block_m * c.block_n / (c.block_m / c.cluster_n + c.block_n / c.cluster_m),
        "gpu.waves": waves,
        "gpu.wave_efficiency": waves / full if full else 1.0,
        "gpu.busy_share": min(1.0, cluster_tiles * c.cluster / target.cores),
        "gpu.cluster": float(c.cluster),
        "gpu.bytes_in_flight": float(c.stages * c.stage_bytes),
        "gpu.stages_of_k": c.stages / k_steps,
        "gpu.accumulators": float(c.accumulators),
        "gpu.log_k_steps": math.log2(k_steps),
    }


# What an H200 was seen to sustain: FLOP per cycle and multiprocessor (wgmma, 16-bit), its clock under full power,
# bytes a second out of L2 and of memory, bytes a second with which one multiprocessor stores, seconds to start.
_FLOP_PER_CYCLE, _CLOCK_HZ = 4096, 1.55e9
_L2_BYTES_PER_S, _MEMORY_BYTES_PER_S, _STORE_BYTES_PER_S = 1.2e13, 4.1e12, 1e11
_START_SECS = 4e-6


def predicted_secs(w: GemmWorkload, target: Target, c: Tile) -> float:
    """A roofline of whole waves: what decides is how many tiles the last wave leaves empty, then L2 traffic."""
    tiles = tiles_of(w, c)
    at_once = resident_clusters(c.cluster, target.cores) * c.cluster
    waves = ceildiv(tiles, at_once)
    # Below 128 x 192 a tile spends part of its time on filling the pipeline and on operands' bandwidth.
    efficiency = 0.75 + 0.25 * min(1.0, c.block_m * c.block_n / (128 * 192))
    compute = waves * 2 * c.block_m * c.block_n * w.k / (_FLOP_PER_CYCLE * _CLOCK_HZ * efficiency)
    l2 = tiles * (c.block_m / c.cluster_n + c.block_n / c.cluster_m) * w.k * 2 / _L2_BYTES_PER_S
    busy = tiles / (waves * at_once)
    memory = w.footprint_bytes() / (_MEMORY_BYTES_PER_S * min(1.0, 1.4 * busy))
    # What is hidden behind the longest is not hidden wholly.
    longest = max(compute, l2, memory) + 0.1 * (compute + l2 + memory)
    return longest + _START_SECS + 4 * c.block_m * c.block_n / _STORE_BYTES_PER_S


def most_stages(sketch: Sketch, workload: Workload, target: Target, knobs: Knobs) -> Knobs | None:
    """`knobs` with as many pipeline stages as the sketch allows; None when no number of them is legal."""
    domain = next(k for k in sketch.knobs(workload, target) if k.name == "stages")
    for stages in reversed(domain.values):
        filled: Knobs = {**knobs, "stages": stages}
        if sketch.violated(workload, target, filled) is None:
            return filled
    return None
