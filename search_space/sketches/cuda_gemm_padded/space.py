"""GEMMs with rows whose stride is not a multiple of 16 bytes (odd k, say): a copying kernel, then the tile kernel."""

from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space as common
from search_space.hopper.launch import Json, gemm_launch, integer, pointer
from search_space.hopper.limits import round_up
from search_space.hopper.tiles import Tile
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

COPY_WARPS = 8  # rows a block of the copying kernel takes, one a warp
_SEEDS = ((128, 256, 2, 2, 1), (128, 192, 2, 2, 1), (128, 128, 2, 2, 1), (128, 128, 2, 1, 1), (64, 128, 1, 1, 1))


class CudaGemmPadded(Sketch):
    name = "cuda_gemm_padded"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "batch")
    complexity = 5

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        if (refused := common.refuse_types(workload, target)) is not None:
            return refused
        if not common.unaligned_operands(common.gemm_of(workload)):
            return Refusal("k", "both operands have rows of a multiple of 16 bytes already: no copy is needed")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = common.gemm_of(workload)
        return (
            Knob("block_m", (64, 128, 256), "rows of C a block computes at a time"),
            Knob("block_n", (64, 128, 192, 256), "columns of C a block computes at a time"),
            Knob("block_k", (64, 128), "elements of k in one pipeline stage"),
            Knob("stages", (2, 3, 4, 5, 6, 7, 8), "pipeline stages in shared memory"),
            Knob("consumers", (1, 2), "warpgroups that issue wgmma"),
            Knob("schedule", ("cooperative", "pingpong"), "consumers share a tile, or alternate between tiles"),
            Knob("cluster_m", (1, 2), "blocks along m that share B by multicast"),
            Knob("cluster_n", (1, 2), "blocks along n that share A by multicast"),
            Knob("store", ("direct", "rows") if w.n % 8 else ("direct", "rows", "tma"), "how C leaves"),
            Knob("group", (1, 4, 8, 16), "raster: cluster tiles of one axis walked before the other advances"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        return common.tile_violation(workload, target, common.tile_of(workload, knobs), dependent=False)

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        w = common.gemm_of(workload)
        tile = common.tile_resources(w, target, common.tile_of(workload, knobs))
        copies = sum(2 * rows * round_up(cols, 8) for _, rows, cols in _copied(w))
        return Resources(tile.registers, tile.shared_bytes, tile.threads, copies)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w = common.gemm_of(workload)
        tile = common.tile_traffic(w, target, common.tile_of(workload, knobs))
        copied = sum(4.0 * rows * cols for _, rows, cols in _copied(w))
        return Traffic(tile.memory_bytes + copied, l2_bytes=tile.l2_bytes + copied)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = common.gemm_of(workload), common.tile_of(workload, knobs)
        copied = sum(2.0 * rows * cols for _, rows, cols in _copied(w))
        return {**common.tile_features(w, target, c), "gpu.copied_share": copied / w.footprint_bytes()}

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        chosen: list[Knobs] = []
        for block_m, block_n, consumers, cluster_m, cluster_n in _SEEDS:
            knobs: Knobs = {
                "block_m": block_m, "block_n": block_n, "block_k": 64, "stages": 2, "consumers": consumers,
                "schedule": "cooperative", "cluster_m": cluster_m, "cluster_n": cluster_n, "store": "rows", "group": 8,
            }  # fmt: skip
            filled = common.most_stages(self, workload, target, knobs)
            if filled is not None:
                chosen.append(filled)
        return tuple(chosen)


def _copied(w: GemmWorkload) -> list[tuple[str, int, int]]:
    """(operand, rows, columns) of each operand that is copied."""
    shapes = {
        "a": (w.batch * (w.k if w.trans_a else w.m), w.m if w.trans_a else w.k),
        "b": (w.batch * (w.n if w.trans_b else w.k), w.k if w.trans_b else w.n),
    }
    return [(name, *shapes[name]) for name in common.unaligned_operands(w)]


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[Tile, Json]:
    """The tile and the launch description of a choice: the copy, then the GEMM, which may start before it has ended
    but waits for it before it reads."""
    w, c = common.gemm_of(workload), common.tile_of(workload, knobs)
    names = common.unaligned_operands(w)
    padded = {o: f"padded_{o}" if o in names else o for o in ("a", "b")}
    launch = gemm_launch(
        c, target.cores, group=int(knobs["group"]), by_n=False, dependent=True, operands=(padded["a"], padded["b"])
    )
    arguments: Json = {}
    blocks: list[object] = []
    for slot, suffix in enumerate(("", "2")):
        operand = names[slot] if slot < len(names) else ""
        rows, cols, count = _copy_formulas(w, operand) if operand else (0, 0, 0)
        pitch: object = ["mul", ["ceildiv", cols, 8], 8]
        blocks.append(count)
        arguments |= {f"rows{suffix}": integer(rows), f"cols{suffix}": integer(cols), f"pitch{suffix}": integer(pitch)}
        arguments[f"X{suffix}_ptr"] = pointer(operand or names[0])
        arguments[f"Y{suffix}_ptr"] = pointer(padded[operand or names[0]])
        if operand:
            launch["workspace"][padded[operand]] = {"nbytes": ["mul", ["mul", rows, pitch], 2]}
            field = launch["kernels"][0]["arguments"][f"{operand.upper()}_map"]
            field["strides"] = [["mul", pitch, 2]]
            if c.batched:
                field["strides"].append(["mul", ["mul", pitch, 2], field["dims"][1]])
    grid = ["add", *blocks]
    arguments |= {"blocks": integer(blocks[0]), "grid": integer(grid)}
    copy = {
        "symbol": "pad_kernel",
        "grid": grid,
        "block": 32 * COPY_WARPS,
        "cluster": 1,
        "shared_bytes": 0,
        "dependent": False,
        "arguments": arguments,
    }
    launch["kernels"].insert(0, copy)
    return c, launch


def _copy_formulas(w: GemmWorkload, operand: str) -> tuple[object, str, object]:
    """(rows, columns, blocks) of an operand's copy as formulas of the extents."""
    along = {"a": ("k", "m") if w.trans_a else ("m", "k"), "b": ("n", "k") if w.trans_b else ("k", "n")}[operand]
    rows: object = ["mul", "batch", along[0]] if w.batch > 1 else along[0]
    return rows, along[1], ["ceildiv", rows, COPY_WARPS]


SKETCH = CudaGemmPadded()
