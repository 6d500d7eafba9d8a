"""Launch descriptions of the Hopper GEMM kernels, as formulas of m, n, k and batch (`tilewright.runtime`)."""

from typing import Any

from search_space.hopper.limits import resident_clusters
from search_space.hopper.skinny import Skinny
from search_space.hopper.split import SplitTile
from search_space.hopper.tiles import Tile

Json = dict[str, Any]


def integer(value: object) -> Json:
    return {"kind": "int32", "value": value}


def pointer(operand: str) -> Json:
    return {"kind": "pointer", "operand": operand}


def tiles_formula(c: Tile) -> list[Any]:
    """Cluster tiles of C."""
    tiles = [
        "mul",
        ["ceildiv", "m", c.block_m * c.cluster_m],
        ["ceildiv", "n", c.block_n * c.cluster_n],
    ]
    return ["mul", "batch", tiles] if c.batched else tiles


def gemm_launch(
    c: Tile,
    multiprocessors: int,
    *,
    group: int,
    by_n: bool,
    dependent: bool,
    persistent: bool = True,
    dealing: str = "even",
    operands: tuple[str, str] = ("a", "b"),
    symbol: str = "main_kernel",
) -> Json:
    """One kernel of `search_space.lowering.hopper_gemm`.

    `dealing` (stream-K): which tiles' iterations are dealt out. "even": all of them to all clusters. "split": to as
    many clusters as divide evenly among the tiles, so that each tile has the same number of shares. "hybrid": whole
    tiles to all clusters as long as two waves are left, then the rest evenly.
    """
    resident = resident_clusters(c.cluster, multiprocessors)
    tiles = tiles_formula(c)
    clusters: Any = ["min", tiles, resident] if persistent else tiles
    stream: Any = 0
    if c.stream_k:
        iterations = ["mul", tiles, ["ceildiv", "k", c.block_k]]
        clusters, stream = ["min", resident, iterations], tiles
        if dealing == "split":
            shares = ["max", 1, ["div", resident, tiles]]
            clusters = ["min", ["min", resident, ["mul", tiles, shares]], iterations]
        if dealing == "hybrid":
            rest = ["mod", tiles, resident]
            more = ["if", ["sub", tiles, resident], ["add", rest, resident], tiles]
            stream = ["if", rest, more, 0]
    arguments: Json = {
        "A_map": {**c.tensor_map("a"), "operand": operands[0]},
        "B_map": {**c.tensor_map("b"), "operand": operands[1]},
        "C_ptr": pointer("c"),
        "bias_ptr": pointer("bias"),
        "partial_ptr": pointer("partial"),
        "flags_ptr": pointer("flags"),
        "group": integer(group),
        "by_n": integer(int(by_n)),
        "clusters": integer(clusters),
        "stream_tiles": integer(stream),
        **{name: integer(name) for name in ("m", "n", "k", "batch")},
    }
    if c.store == "tma":
        arguments["C_map"] = c.tensor_map("c")
    blocks = ["mul", clusters, c.cluster]
    kernel = {
        "symbol": symbol,
        "grid": blocks,
        "block": c.threads,
        "cluster": c.cluster,
        "shared_bytes": c.shared_bytes(),
        "dependent": dependent,
        "arguments": arguments,
    }
    workspace: Json = {}
    if c.stream_k:
        workspace = {
            "partial": {"nbytes": ["mul", blocks, c.partial_bytes()]},
            "flags": {"nbytes": ["mul", blocks, c.consumers * 16], "zero": True},
        }
    return {"workspace": workspace, "kernels": [kernel]}


def skinny_launch(c: Skinny, multiprocessors: int, *, dependent: bool, persistent: bool = True) -> Json:
    """The kernel of `search_space.lowering.hopper_skinny`; not persistent: one cluster a tile."""
    tiles: Any = ["ceildiv", "n", c.rows * c.share]
    resident = resident_clusters(c.cluster, multiprocessors, c.blocks_per_sm)
    clusters: Any = ["min", tiles, resident] if persistent else tiles
    arguments: Json = {
        "A_map": c.tensor_map("a"),
        "B_map": c.tensor_map("b"),
        "C_ptr": pointer("c"),
        "bias_ptr": pointer("bias"),
        "clusters": integer(clusters),
        **{name: integer(name) for name in ("m", "n", "k")},
    }
    kernel = {
        "symbol": "main_kernel",
        "grid": ["mul", clusters, c.cluster],
        "block": c.threads,
        "cluster": c.cluster,
        "shared_bytes": c.shared_bytes(),
        "dependent": dependent,
        "arguments": arguments,
    }
    return {"workspace": {}, "kernels": [kernel]}


def split_launch(c: SplitTile, *, group: int, by_n: bool, dependent: bool) -> Json:
    """The kernel of `search_space.lowering.hopper_splitk`: one cluster a tile, all at once or in waves."""
    clusters = tiles_formula(c)
    arguments: Json = {
        "A_map": c.tensor_map("a"),
        "B_map": c.tensor_map("b"),
        "C_ptr": pointer("c"),
        "bias_ptr": pointer("bias"),
        "group": integer(group),
        "by_n": integer(int(by_n)),
        "clusters": integer(clusters),
        **{name: integer(name) for name in ("m", "n", "k", "batch")},
    }
    if c.store == "tma":
        arguments["C_map"] = c.tensor_map("c")
    kernel = {
        "symbol": "main_kernel",
        "grid": ["mul", clusters, c.cluster],
        "block": c.threads,
        "cluster": c.cluster,
        "shared_bytes": c.shared_bytes(),
        "dependent": dependent,
        "arguments": arguments,
    }
    return {"workspace": {}, "kernels": [kernel]}
