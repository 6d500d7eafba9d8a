"""What the sketches over the K-major tile kernel share: knobs, constraints with their reasons, what a choice costs."""

import math

from search_space.gemm import SCALE_BLOCK, GemmWorkload
from search_space.hopper import gemm_space as common
from search_space.hopper.kmajor import KTile
from search_space.hopper.launch import Json
from search_space.hopper.limits import (
    CLUSTER_MAX,
    INDEX_MAX,
    SHARED_BLOCK_BYTES,
    TMA_ROW_BYTES,
    ceildiv,
    resident_clusters,
)
from search_space.hopper.tiles import ACCUMULATORS
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

_ROWS = Constraint("rows", "a consumer warpgroup multiplies whole blocks of 64 rows (wgmma m64)")
_PINGPONG = Constraint("pingpong", "ping-pong needs two consumers, and blocks that go on to another tile")
_ACCUMULATORS = Constraint(
    "accumulators", "sums (with promotion also a stage's products) must fit a thread's registers, or ptxas spills"
)
_SHARED = Constraint("shared_memory", "stages, staging and barriers must fit the 227 KiB a block can have")
_CLUSTER = Constraint("cluster", "a portable cluster has at most 8 blocks, and needs as many neighbouring tiles")
_STORE = Constraint("store_alignment", "bulk and 16-byte stores need rows of C of a multiple of 16 bytes")
_STORE_GROUPS = Constraint("store_groups", "a bulk store writes whole tiles, and would overwrite the next group's rows")
_OVERLAP = Constraint("overlap", "only what is promoted, and one block of 64 rows a consumer, has two sets of products")
_SCALE_TILE = Constraint(
    "scale_block", "a block's columns must share one scale of B: block_n divides 128, one slab of k"
)
_INDEX = Constraint("index", "plain stores index C with 32 bits")


def refuse_layout(w: GemmWorkload, itemsize: int) -> Refusal | None:
    """Both operands with k contiguous, rows that TMA can read, no batch."""
    if w.batch > 1:
        return Refusal("batch", "one matrix a call, got a batch", ("1",))
    if w.trans_a:
        return Refusal("trans_a", "A must be stored [m, k]", ("false",))
    if not w.trans_b:
        return Refusal("trans_b", "B must be stored [n, k]", ("true",))
    if w.k * itemsize % TMA_ROW_BYTES:
        multiple = TMA_ROW_BYTES // itemsize
        return Refusal("k", f"TMA reads rows of a multiple of 16 bytes: k must be a multiple of {multiple}, got {w.k}")
    if w.dtype_out not in common.HALF_TYPES:
        return Refusal("dtype_out", f"16-bit output only, got {w.dtype_out}", common.HALF_TYPES)
    if w.groups * w.m * w.n > INDEX_MAX:
        return Refusal("n", "C has more elements than 32-bit indices address")
    return None


# Multiples of 16: a staged store takes 16 columns, and half a tile is then whole 8-row swizzle atoms for a multicast.
BLOCK_N = tuple(range(16, 257, 16))


def tile_knobs(w: GemmWorkload) -> tuple[Knob, ...]:
    staged = ("rows",) if w.groups > 1 else ("rows", "tma")
    return (
        Knob("block_m", (64, 128, 192, 256), "rows of C a block computes at a time"),
        Knob("block_n", BLOCK_N, "columns of C a block computes at a time"),
        Knob("slabs", (1, 2), "128-byte slabs of k in one pipeline stage"),
        Knob("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), "pipeline stages in shared memory"),
        Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
        Knob("schedule", ("cooperative", "pingpong"), "consumers share a tile, or alternate between tiles"),
        Knob("cluster_m", (1, 2), "blocks along m that share B by multicast"),
        Knob("cluster_n", (1, 2), "blocks along n that share A by multicast"),
        Knob("store", ("direct",) if w.n % 8 else staged, "how C leaves: fragments, staged rows, or bulk stores"),
        Knob("group", (1, 4, 8, 16, 32), "raster: cluster tiles of one axis walked before the other advances"),
        Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
        Knob("persistent", (True,) if w.groups > 1 else (False, True), "blocks loop over tiles, or one block a tile"),
    )


def ktile_of(workload: Workload, knobs: Knobs) -> KTile:
    w = common.gemm_of(workload)
    return KTile(
        block_m=int(knobs["block_m"]),
        block_n=int(knobs["block_n"]),
        slabs=int(knobs["slabs"]),
        stages=int(knobs["stages"]),
        consumers=int(knobs["consumers"]),
        pingpong=knobs["schedule"] == "pingpong",
        cluster_m=int(knobs["cluster_m"]),
        cluster_n=int(knobs["cluster_n"]),
        store=str(knobs["store"]),
        dtype=w.dtype_a,
        dtype_out=w.dtype_out,
        scales=w.scales,
        promote=w.scales == "block" or bool(knobs.get("promote", False)),
        overlap=bool(knobs.get("overlap", False)),
        grouping=w.grouping,
        epilogue=w.epilogue,
    )


def violation(workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
    """The first constraint of the K-major tile that the choice breaks."""
    w, c = common.gemm_of(workload), ktile_of(workload, knobs)
    if c.block_m % (64 if c.pingpong else 64 * c.consumers):
        return _ROWS
    if c.pingpong and (c.consumers != 2 or not knobs["persistent"]):
        return _PINGPONG
    if c.overlap and (not c.promote or c.rows_of_64 > 1):
        return _OVERLAP
    if c.accumulators > ACCUMULATORS[c.consumers]:
        return _ACCUMULATORS
    if c.scales == "block" and (SCALE_BLOCK % c.block_n or c.slabs != 1):
        return _SCALE_TILE
    if c.shared_bytes() > min(SHARED_BLOCK_BYTES, target.shared_bytes or SHARED_BLOCK_BYTES):
        return _SHARED
    if c.store != "direct" and w.n % 8:
        return _STORE
    return _STORE_GROUPS if c.store == "tma" and c.grouped else _cluster_violation(w, c)


def _cluster_violation(w: GemmWorkload, c: KTile) -> Constraint | None:
    if c.cluster > CLUSTER_MAX:
        return _CLUSTER
    if c.cluster_m > ceildiv(w.m, c.block_m) or c.cluster_n > ceildiv(w.n, c.block_n):
        return _CLUSTER
    return None


def resources(workload: Workload, knobs: Knobs) -> Resources:
    """Registers a thread: what setmaxnreg or the launch bound gives a consumer."""
    c = ktile_of(workload, knobs)
    return Resources(240 if c.consumers == 2 else 255, c.shared_bytes(), c.threads)


def traffic(workload: Workload, target: Target, knobs: Knobs) -> Traffic:
    """Memory: each operand once, plus what a wave of tiles cannot keep in L2. L2: every tile's loads."""
    w, c = common.gemm_of(workload), ktile_of(workload, knobs)
    m_tiles, n_tiles = ceildiv(w.m, c.block_m), ceildiv(w.n, c.block_n)
    a, b, out = float(w.m * w.k * c.itemsize), float(w.n * w.k * c.itemsize), w.m * w.n * 2.0
    l2 = w.groups * (a * n_tiles / c.cluster_n + b * m_tiles / c.cluster_m + out)
    cached = max(1.0, float(target.l2_bytes or 50_000_000))
    reread = max(0.0, min(a, b) - cached) * min(m_tiles, n_tiles) / 8.0
    return Traffic(memory_bytes=w.footprint_bytes() + w.groups * reread, l2_bytes=l2)


def features(workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
    w, c = common.gemm_of(workload), ktile_of(workload, knobs)
    cluster_tiles = w.groups * ceildiv(w.m, c.block_m * c.cluster_m) * ceildiv(w.n, c.block_n * c.cluster_n)
    waves = cluster_tiles / resident_clusters(c.cluster, target.cores)
    k_steps = ceildiv(w.k, c.block_k)
    return {
        "tile.m": float(c.block_m),
        "tile.n": float(c.block_n),
        "tile.k": float(c.block_k),
        "tile.waste": 1.0 - w.groups * w.m * w.n / (cluster_tiles * c.cluster * c.block_m * c.block_n),
        "tile.intensity": c.block_m * c.block_n / (c.block_m / c.cluster_n + c.block_n / c.cluster_m),
        "gpu.waves": waves,
        "gpu.wave_efficiency": waves / math.ceil(waves),
        "gpu.busy_share": min(1.0, cluster_tiles * c.cluster / target.cores),
        "gpu.cluster": float(c.cluster),
        "gpu.bytes_in_flight": float(c.stages * c.stage_bytes),
        "gpu.stages_of_k": c.stages / k_steps,
        "gpu.accumulators": float(c.accumulators),
        "gpu.log_k_steps": math.log2(k_steps),
        "gpu.pingpong": float(c.pingpong),
        "gpu.promote": float(c.promote),
        "gpu.raster": float(int(knobs["group"])),
    }


def plain_knobs(w: GemmWorkload, block_m: int, block_n: int, consumers: int, **change: int | str | bool) -> Knobs:
    """A choice with the defaults of `seeds`, `change` applied."""
    return {
        "block_m": block_m, "block_n": block_n, "slabs": 1, "stages": 2, "consumers": consumers,
        "schedule": "cooperative", "cluster_m": 1, "cluster_n": 1,
        "store": "direct" if w.n % 8 else "rows" if w.groups > 1 else "tma", "group": 8, "by_n": False,
        "persistent": True, **change,
    }  # fmt: skip


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[KTile, Json]:
    """The tile and the launch description of a choice."""
    c = ktile_of(workload, knobs)
    launch = c.launch(
        target.cores,
        group=int(knobs["group"]),
        by_n=bool(knobs["by_n"]),
        persistent=bool(knobs["persistent"]),
    )
    return c, launch
