"""GEMMs with few tiles and a long k (m of 64 to a few hundred): the blocks of a cluster divide k among them."""

import math

from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json, split_launch
from search_space.hopper.limits import ceildiv, resident_clusters
from search_space.hopper.split import SplitTile
from search_space.hopper.tiles import Tile
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.sketches.cuda_gemm_ws.space import BLOCK_N
from search_space.sketches.cuda_gemm_ws.space import SKETCH as WHOLE_TILES
from search_space.target import Target
from search_space.workload import Workload

_SPLIT = Constraint("split", "every part of k needs at least one stage; one part alone is cuda_gemm_ws")
_TURNS = Constraint("turns", "turns are taken by all consumers: as many as there are, or none")
_SLICE = Constraint("slice", "a part owns whole units of 8 columns of the tile (a wgmma fragment), 16 for bulk stores")
_EXCHANGE = Constraint(
    "exchange", "the sums of a tile and the staged slice lie where the stages lay: stages must be at least as large"
)
_SEEDS = 8


class CudaGemmSplitK(Sketch):
    name = "cuda_gemm_splitk"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 3

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := WHOLE_TILES.refusal(workload, target)) is not None:
            return refused
        w = common.gemm_of(workload)
        if w.n % 2:
            return Refusal("n", f"C leaves in pieces of 4 bytes at least: n must be even, got {w.n}")
        if w.k <= 64:
            return Refusal("k", f"two blocks of a cluster need more than one stage of 64 elements, k is {w.k}")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        return (
            Knob("block_m", (64, 128, 192, 256), "rows of C a cluster computes at a time"),
            Knob("block_n", BLOCK_N, "columns of C a cluster computes at a time"),
            Knob("block_k", (64, 128), "elements of k in one pipeline stage"),
            Knob("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("split", (1, 2, 3, 4, 5, 6, 8), "blocks of a cluster that divide k among them"),
            Knob("turns", (1, 2), "2: consumers take every other stage of k instead of every other block of rows"),
            Knob("cluster_m", (1, 2, 4), "tiles along m whose blocks share B by multicast"),
            Knob("cluster_n", (1, 2, 4), "tiles along n whose blocks share A by multicast"),
            Knob("store", ("direct",) if w.n % 8 else ("direct", "tma"), "how C leaves: fragments, or bulk stores"),
            Knob("group", (1, 4, 8, 16), "raster: cluster tiles of one axis walked before the other advances"),
            Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
            Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = common.gemm_of(workload), split_of(workload, knobs)
        if not 2 <= c.parts <= ceildiv(w.k, c.block_k):
            return _SPLIT
        if c.turns not in (1, c.consumers):
            return _TURNS
        if c.block_n % (c.parts * (16 if c.store == "tma" else 8)):
            return _SLICE
        broken = common.tile_violation(workload, target, c, bool(knobs["dependent"]))
        if broken is None and c.exchange_bytes + c.staging_bytes > c.ring_bytes:
            return _EXCHANGE
        return broken

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return common.tile_resources(common.gemm_of(workload), target, split_of(workload, knobs))

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w, c = common.gemm_of(workload), split_of(workload, knobs)
        whole = common.tile_traffic(w, target, c)
        exchanged = common.tiles_of(w, c) * c.exchange_bytes * (c.split - 1) / c.split
        return Traffic(whole.memory_bytes, l2_bytes=whole.l2_bytes + exchanged)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = common.gemm_of(workload), split_of(workload, knobs)
        features = common.tile_features(w, target, c)
        k_steps = ceildiv(ceildiv(w.k, c.block_k), c.split)
        return {
            **features,
            # `tile_features` takes every block of a cluster for a tile of its own.
            "tile.waste": 1.0 - (1.0 - features["tile.waste"]) * c.split,
            "gpu.split": float(c.split),
            "gpu.turns": float(c.turns),
            "gpu.stages_of_k": c.stages / k_steps,
            "gpu.log_k_steps": math.log2(k_steps),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """The tiles that `predicted_secs` ranks first."""
        w = common.gemm_of(workload)
        ranked: list[tuple[float, Knobs]] = []
        for block_m, consumers, turns in ((64, 2, 2), (64, 1, 1), (128, 2, 2), (128, 2, 1), (256, 2, 1)):
            for block_n in BLOCK_N:
                for split in (1, 2, 4, 8):
                    knobs = self._plain(w, block_m, block_n, consumers, split, turns)
                    filled = common.most_stages(self, workload, target, knobs)
                    if filled is not None:
                        ranked.append((predicted_secs(w, target, split_of(workload, filled)), filled))
        ranked.sort(key=lambda pair: pair[0])
        return tuple(knobs for _, knobs in ranked[:_SEEDS])

    def _plain(self, w: GemmWorkload, block_m: int, block_n: int, consumers: int, split: int, turns: int) -> Knobs:
        staged = w.n % 8 == 0 and block_n % (16 * split * turns) == 0
        return {
            "block_m": block_m, "block_n": block_n, "block_k": 64, "stages": 2, "consumers": consumers, "split": split,
            "turns": turns, "cluster_m": 1, "cluster_n": 1, "store": "tma" if staged else "direct", "group": 8,
            "by_n": False, "dependent": False,
        }  # fmt: skip


# What one multiprocessor was seen to do in a cycle: 16-bit products of wgmma, bytes of operands it takes in, bytes of
# sums exchanged in a cluster.
MACS_PER_CYCLE, OPERAND_BYTES_PER_CYCLE, EXCHANGE_BYTES_PER_CYCLE = 2048, 96, 32
CLOCK_HZ, MEMORY_BYTES_PER_S, _START_SECS = 1.7e9, 4.1e12, 3e-6


def cycles_of_k(c: Tile) -> float:
    """Cycles for one element of k of a tile: its products or its operands' way in, whichever takes longer."""
    products = c.block_m * c.block_n / MACS_PER_CYCLE
    operands = 2 * (c.block_m + c.block_n) / OPERAND_BYTES_PER_CYCLE
    return max(products, operands) + 0.1 * (products + operands)


def predicted_secs(w: GemmWorkload, target: Target, c: SplitTile) -> float:
    """Waves of clusters, each as long as one block's share of k and the exchange; at least the time to read memory."""
    waves = ceildiv(common.tiles_of(w, c) // c.cluster, resident_clusters(c.cluster, target.cores))
    steps = ceildiv(ceildiv(w.k, c.block_k), c.split) * c.block_k
    exchange = c.exchange_bytes * (c.split - 1) / c.split / EXCHANGE_BYTES_PER_CYCLE
    busy = waves * (steps * cycles_of_k(c) + exchange) / CLOCK_HZ
    return overlapped(busy, w.footprint_bytes() / MEMORY_BYTES_PER_S) + _START_SECS


def overlapped(busy: float, memory: float) -> float:
    """The longer of two times, and a part of both: what is hidden is not hidden wholly."""
    return max(busy, memory) + 0.1 * (busy + memory)


def split_of(workload: Workload, knobs: Knobs) -> SplitTile:
    w = common.gemm_of(workload)
    return SplitTile(
        block_m=int(knobs["block_m"]),
        block_n=int(knobs["block_n"]),
        block_k=int(knobs["block_k"]),
        stages=int(knobs["stages"]),
        consumers=int(knobs["consumers"]),
        pingpong=False,
        cluster_m=int(knobs["cluster_m"]),
        cluster_n=int(knobs["cluster_n"]),
        store=str(knobs["store"]),
        trans_a=w.trans_a,
        trans_b=w.trans_b,
        dtype=w.dtype_a,
        epilogue=w.epilogue,
        batched=w.batch > 1,
        early_b=bool(knobs["dependent"]),
        split=int(knobs["split"]),
        turns=int(knobs["turns"]),
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[SplitTile, Json]:
    """The tile and the launch description of a choice."""
    c = split_of(workload, knobs)
    group, by_n, dependent = int(knobs["group"]), bool(knobs["by_n"]), bool(knobs["dependent"])
    return c, split_launch(c, group=group, by_n=by_n, dependent=dependent)


SKETCH = CudaGemmSplitK()
