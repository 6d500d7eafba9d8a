"""Materialised attention: a query tile's scores over all keys stay in cache, one softmax, one product with V.

Nothing is carried from block to block, so nothing is rescaled and the output goes from registers to memory. K of the
head is packed whole: for short sequences only.
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
from search_space.cpu_model import at_most, round_up, vector_unit
from search_space.knob import Knob, Knobs
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload

SEQ_KV_MAX = 2048


def padded_keys(w: AttentionWorkload, knobs: Knobs) -> int:
    """Keys of the head in whole key tiles."""
    return round_up(w.seq_kv, int(knobs["tile_n"]))


class CpuAttentionMaterialised(SlicedAttentionSketch):
    name = "cpu_attention_materialised"
    version = 1
    complexity = 1
    # The packed keys (and values) and the scores of a tile are read once per query tile: beyond this they would come
    # from memory each time.
    workspace_in_l2 = 4
    workspace_holds = "packed keys, values and scores"

    def structure_refusal(self, w: AttentionWorkload, target: Target) -> Refusal | None:
        lanes = vector_unit(target).lanes
        packed_values = round_up(w.head_dim_v, lanes) if w.head_dim_v < lanes else 0
        least = 4 * round_up(w.seq_kv, lanes) * (w.head_dim + packed_values + 1)
        if w.seq_kv > SEQ_KV_MAX or least + 4 * w.head_dim > self.workspace_limit(target):
            return Refusal("seq_kv", f"{w.seq_kv} keys are too many to hold all scores of a query tile")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        return (
            *tile_knobs(w, g),
            Knob("block_m", at_most(BLOCKS_M, g.rows), "query rows of a parallel task, rounded up to whole tiles"),
            Knob("unroll", UNROLLS, "steps of both reductions unrolled"),
            Knob("pack_v", (False, True), "copy V to float32 tiles once a task, instead of reading it in place"),
        )

    def workspace(self, w: AttentionWorkload, knobs: Knobs) -> int:
        """Bytes of the temporaries of one task."""
        keys, tile_m = padded_keys(w, knobs), int(knobs["tile_m"])
        dim = round_up(w.head_dim, int(knobs["unroll"]))
        width = round_up(w.head_dim_v, int(knobs["tile_v"])) if knobs["pack_v"] else 0
        return 4 * (keys * (dim + width) + tile_m * (keys + dim))

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        tiles = (int(knobs["tile_m"]), int(knobs["tile_n"]), int(knobs["tile_v"]))
        keys, rows = padded_keys(w, knobs), slice_rows(w, knobs)
        out = tile_features(w, target, *tiles, int(knobs["unroll"]))
        out.update(grain_features(g.heads * slices(w, knobs), target))
        out.update(
            block_n=keys,
            block_m=rows,
            blocks=1,
            pack_v=float(bool(knobs["pack_v"])),
            pack_per_fma=1.0 / min(rows, g.rows),
        )
        packed = 4 * keys * (w.head_dim + w.head_dim_v)
        out.update(cache_features(target, 4 * tiles[0] * keys, packed, self.workspace(w, knobs)))
        return out

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """Full register tiles, a whole head or a part of one a task."""
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        wanted: list[Knobs] = []
        shapes = ((6, 2), (4, 2), (4, 3)) if g.unit.registers <= 16 else ((8, 2), (12, 2), (4, 4), (14, 2))
        for tile_m, vectors in shapes:
            for block_m in (512, 64):
                width = vectors * g.unit.lanes
                pack_v = w.dtype != "float32" or w.head_dim_v < g.unit.lanes
                sizes = {"tile_m": tile_m, "tile_n": width, "tile_v": width, "block_m": block_m, "unroll": 1}
                choice = nearest_choice(self.knobs(w, target), {**sizes, "pack_v": pack_v})
                if choice not in wanted and self.violated(w, target, choice) is None:
                    wanted.append(choice)
        return tuple(wanted)


SKETCH = CpuAttentionMaterialised()
