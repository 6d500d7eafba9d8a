"""Fused attention: query tiles against key blocks with a running maximum and sum (FlashAttention, arXiv:2205.14135).

A task is a slice of the query rows of one KV head (all query heads of its group together). It walks over blocks of
keys: the block is packed transposed once, then every query tile of the slice multiplies with it, rescales its running
output and adds to it. All temporaries are bounded by the slice and the block, whatever the sequence lengths.
"""

from search_space.attention import AttentionWorkload
from search_space.cpu_attention import (
    Geometry,
    as_attention,
    cache_features,
    grain_features,
    nearest_choice,
    tile_features,
)
from search_space.cpu_attention_slices import BLOCKS_M, UNROLLS, SlicedAttentionSketch, slice_rows, slices, tile_knobs
from search_space.cpu_model import at_most, ceil_div, round_up
from search_space.knob import Knob, Knobs
from search_space.target import Target
from search_space.workload import Workload

BLOCKS_N = (32, 64, 128, 256, 512, 1024)


def block_keys(w: AttentionWorkload, knobs: Knobs) -> int:
    """Keys of a block: whole key tiles."""
    tile, block = int(knobs["tile_n"]), int(knobs["block_n"])
    return round_up(min(block, w.seq_kv), tile)


class CpuAttentionFused(SlicedAttentionSketch):
    name = "cpu_attention_fused"
    version = 1
    complexity = 2
    # A task's temporaries beyond a few L2 caches only add traffic.
    workspace_in_l2 = 8
    workspace_holds = "a task's temporaries"

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        return (
            *tile_knobs(w, g),
            Knob("block_n", at_most(BLOCKS_N, w.seq_kv), "keys packed and used at a time, rounded up to whole tiles"),
            Knob("block_m", at_most(BLOCKS_M, g.rows), "query rows of a parallel task, rounded up to whole tiles"),
            Knob("unroll", UNROLLS, "steps of both reductions unrolled"),
            Knob("pack_v", (False, True), "copy V to float32 tiles once a block, instead of reading it in place"),
        )

    def workspace(self, w: AttentionWorkload, knobs: Knobs) -> int:
        """Bytes of the temporaries of one task."""
        block, rows = block_keys(w, knobs), slice_rows(w, knobs)
        width = round_up(w.head_dim_v, int(knobs["tile_v"]))
        dim = round_up(w.head_dim, int(knobs["unroll"]))
        packed = block * (dim + (width if knobs["pack_v"] else 0))
        return 4 * (packed + rows * (dim + width + 2) + int(knobs["tile_m"]) * block)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        tiles = (int(knobs["tile_m"]), int(knobs["tile_n"]), int(knobs["tile_v"]))
        block, rows, count = block_keys(w, knobs), slice_rows(w, knobs), slices(w, knobs)
        out = tile_features(w, target, *tiles, int(knobs["unroll"]))
        out.update(grain_features(g.heads * count, target))
        out.update(
            block_n=block,
            block_m=rows,
            blocks=ceil_div(w.seq_kv, block),
            pack_v=float(bool(knobs["pack_v"])),
            # Each packed element of K serves `rows` query rows.
            pack_per_fma=1.0 / min(rows, g.rows),
        )
        packed = 4 * block * (w.head_dim + w.head_dim_v)
        out.update(cache_features(target, 4 * tiles[0] * block, packed, self.workspace(w, knobs)))
        return out

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """Full register tiles over blocks of 256 and 512 keys, in slices that keep every core busy."""
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        wanted: list[Knobs] = []
        shapes = ((6, 2), (4, 2), (4, 3)) if g.unit.registers <= 16 else ((8, 2), (12, 2), (4, 4), (14, 2))
        for tile_m, vectors in shapes:
            for block_n, block_m in ((512, 128), (256, 512)):
                width = vectors * g.unit.lanes
                pack_v = w.dtype != "float32" or w.head_dim_v < g.unit.lanes
                sizes = {"tile_m": tile_m, "tile_n": width, "tile_v": width, "block_n": block_n, "block_m": block_m}
                choice = nearest_choice(self.knobs(w, target), {**sizes, "unroll": 1, "pack_v": pack_v})
                if choice not in wanted and self.violated(w, target, choice) is None:
                    wanted.append(choice)
        return tuple(wanted)


SKETCH = CpuAttentionFused()
