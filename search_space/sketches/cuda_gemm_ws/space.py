"""Large and medium GEMMs: each block owns whole tiles of C."""

from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json, gemm_launch
from search_space.hopper.tiles import Tile
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

_SEEDS = 8
# Any multiple of 8 is a wgmma; a staged store takes 16 columns. Fine steps, since the width decides whether the tiles
# fill the last wave.
BLOCK_N = tuple(range(16, 257, 16))


class CudaGemmWs(Sketch):
    name = "cuda_gemm_ws"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 2

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := common.refuse_types(workload, target)) is not None:
            return refused
        w = common.gemm_of(workload)
        for operand in common.unaligned_operands(w):
            inner = {"a": "m" if w.trans_a else "k", "b": "k" if w.trans_b else "n"}[operand]
            return Refusal(
                inner, f"TMA reads rows of {operand} of a multiple of 16 bytes: {inner} must be a multiple of 8"
            )
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        stores = ("direct", "rows") if w.n % 8 else ("direct", "rows", "tma")
        return (
            Knob("block_m", (64, 128, 192, 256), "rows of C a block computes at a time"),
            Knob("block_n", BLOCK_N, "columns of C a block computes at a time"),
            Knob("block_k", (64, 128), "elements of k in one pipeline stage"),
            Knob("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("schedule", ("cooperative", "pingpong"), "consumers share a tile, or alternate between tiles"),
            Knob("cluster_m", (1, 2, 4), "blocks along m that share B by multicast"),
            Knob("cluster_n", (1, 2, 4), "blocks along n that share A by multicast"),
            Knob("store", stores, "how C leaves: fragments, staged rows, or bulk tensor stores"),
            Knob("group", (1, 2, 4, 8, 16, 32), "raster: cluster tiles of one axis walked before the other advances"),
            Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
            Knob("persistent", (False, True), "blocks loop over tiles, or one block a tile"),
            Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        c = common.tile_of(workload, knobs)
        if c.pingpong and not knobs["persistent"]:
            return common._PINGPONG
        return common.tile_violation(workload, target, c, bool(knobs["dependent"]))

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return common.tile_resources(common.gemm_of(workload), target, common.tile_of(workload, knobs))

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return common.tile_traffic(common.gemm_of(workload), target, common.tile_of(workload, knobs))

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        c = common.tile_of(workload, knobs)
        features = common.tile_features(common.gemm_of(workload), target, c)
        return {**features, "gpu.pingpong": float(c.pingpong), "gpu.raster": float(int(knobs["group"]))}

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """The shapes of tile that a roofline of whole waves ranks first."""
        w = common.gemm_of(workload)
        ranked: list[tuple[float, Knobs]] = []
        for block_m, consumers in ((64, 1), (128, 2), (256, 2)):
            for block_n in BLOCK_N:
                for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2)):
                    knobs = self._plain(w, block_m, block_n, consumers, cluster_m, cluster_n)
                    filled = common.most_stages(self, workload, target, knobs)
                    if filled is not None:
                        tile = common.tile_of(workload, filled)
                        ranked.append((common.predicted_secs(w, target, tile), filled))
        ranked.sort(key=lambda pair: pair[0])
        return tuple(knobs for _, knobs in ranked[:_SEEDS])

    def _plain(
        self, w: GemmWorkload, block_m: int, block_n: int, consumers: int, cluster_m: int, cluster_n: int
    ) -> Knobs:
        # Narrow tiles have little to do in a stage of 64: a barrier then costs as much as the products.
        return {
            "block_m": block_m, "block_n": block_n, "block_k": 128 if block_m + block_n <= 128 else 64, "stages": 2,
            "consumers": consumers, "schedule": "cooperative", "cluster_m": cluster_m, "cluster_n": cluster_n,
            "store": "rows" if w.n % 8 else "tma", "group": 8, "by_n": False, "persistent": True, "dependent": False,
        }  # fmt: skip


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Tile, Json]:
    """The tile and the launch description of a choice."""
    c = common.tile_of(workload, knobs)
    launch = gemm_launch(
        c,
        target.cores,
        group=int(knobs["group"]),
        by_n=bool(knobs["by_n"]),
        dependent=bool(knobs["dependent"]),
        persistent=bool(knobs["persistent"]),
    )
    return c, launch


SKETCH = CudaGemmWs()
