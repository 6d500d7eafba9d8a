"""GEMMs whose tiles do not fill whole waves of the card: m of 64 to a few hundred, long k (arXiv:2301.03598)."""

from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json, gemm_launch
from search_space.hopper.limits import INDEX_MAX, ceildiv
from search_space.hopper.tiles import Tile
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.sketches.cuda_gemm_ws.space import BLOCK_N
from search_space.sketches.cuda_gemm_ws.space import SKETCH as WHOLE_TILES
from search_space.target import Target
from search_space.workload import Workload

_ITERATIONS = Constraint("iterations", "shares of the iterations are computed with 32-bit products")
# (block_m, block_n, block_k, consumers, cluster_m, cluster_n, dealing)
_SEEDS = (
    (64, 128, 128, 1, 1, 1, "even"),
    (64, 256, 64, 1, 1, 1, "even"),
    (64, 128, 64, 1, 1, 2, "split"),
    (128, 128, 64, 2, 1, 1, "even"),
    (128, 128, 64, 2, 1, 2, "even"),
    (128, 256, 64, 2, 1, 1, "even"),
    (128, 256, 64, 2, 2, 1, "hybrid"),
    (256, 128, 64, 2, 2, 1, "even"),
)


class CudaGemmStreamK(Sketch):
    name = "cuda_gemm_streamk"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 4

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        return WHOLE_TILES.refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        stores = ("direct", "rows") if w.n % 8 else ("direct", "rows", "tma")
        return (
            Knob("block_m", (64, 128, 256), "rows of C a block computes at a time"),
            Knob("block_n", BLOCK_N, "columns of C a block computes at a time"),
            Knob("block_k", (64, 128), "elements of k in one pipeline stage"),
            Knob("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("cluster_m", (1, 2, 4), "blocks along m that share B by multicast"),
            Knob("cluster_n", (1, 2), "blocks along n that share A by multicast"),
            Knob("store", stores, "how C leaves: fragments, staged rows, or bulk tensor stores"),
            Knob("dealing", ("even", "split", "hybrid"), "which tiles' iterations are dealt out to how many clusters"),
            Knob("group", (1, 4, 8, 16), "raster: cluster tiles of one axis walked before the other advances"),
            Knob("by_n", (False, True), "raster groups columns of tiles instead of rows"),
            Knob("dependent", (False, True) if w.b_constant else (False,), "programmatic dependent launch"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, c = common.gemm_of(workload), common.tile_of(workload, knobs, stream_k=True)
        if common.tiles_of(w, c) * ceildiv(w.k, c.block_k) * target.cores > INDEX_MAX:
            return _ITERATIONS
        return common.tile_violation(workload, target, c, bool(knobs["dependent"]))

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        c = common.tile_of(workload, knobs, stream_k=True)
        return common.tile_resources(common.gemm_of(workload), target, c)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        c = common.tile_of(workload, knobs, stream_k=True)
        return common.tile_traffic(common.gemm_of(workload), target, c)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        c = common.tile_of(workload, knobs, stream_k=True)
        features = common.tile_features(common.gemm_of(workload), target, c)
        return {**features, "gpu.partial_bytes": float(c.partial_bytes())}

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        store = "rows" if common.gemm_of(workload).n % 8 else "tma"
        chosen: list[Knobs] = []
        for block_m, block_n, block_k, consumers, cluster_m, cluster_n, dealing in _SEEDS:
            knobs: Knobs = {
                "block_m": block_m, "block_n": block_n, "block_k": block_k, "stages": 2, "consumers": consumers,
                "cluster_m": cluster_m, "cluster_n": cluster_n, "store": store, "dealing": dealing, "group": 8,
                "by_n": False, "dependent": False,
            }  # fmt: skip
            filled = common.most_stages(self, workload, target, knobs)
            if filled is not None:
                chosen.append(filled)
        return tuple(chosen)


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Tile, Json]:
    """The tile and the launch description of a choice."""
    c = common.tile_of(workload, knobs, stream_k=True)
    launch = gemm_launch(
        c,
        target.cores,
        group=int(knobs["group"]),
        by_n=bool(knobs["by_n"]),
        dependent=bool(knobs["dependent"]),
        dealing=str(knobs["dealing"]),
    )
    return c, launch


SKETCH = CudaGemmStreamK()
