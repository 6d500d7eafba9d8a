"""Materialised attention: a query tile's scores over all keys stay in cache, one softmax, one product with V.

Nothing is carried from block to block, so nothing is rescaled and the output goes from registers to memory. K of the
head is packed whole: for short sequences only.
"""

from search_space.attention import AttentionWorkload
from search_space.cpu_attention import (
    CpuAttentionSketch,
    Geometry,
    as_attention,
    cache_features,
    column_tiles,
    grain_features,
    nearest_choice,
    row_tiles,
    tile_features,
    tile_registers,
    tile_traffic,
    tile_violation,
    vector_multiples,
)
from search_space.cpu_model import at_most, ceil_div, round_up, vector_unit
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

BLOCKS_M = (16, 32, 64, 128, 256, 512)
UNROLLS = (1, 2, 4)
SEQ_KV_MAX = 2048
# The packed keys (and values) and the scores of a tile are read once per query tile: beyond this they would come from
# memory each time.
WORKSPACE_IN_L2 = 4
DEFAULT_L2 = 512 * 1024
WORKSPACE = Constraint("workspace", f"packed keys, values and scores must fit {WORKSPACE_IN_L2} times the L2 cache")


def padded_keys(w: AttentionWorkload, knobs: Knobs) -> int:
    """Keys of the head in whole key tiles."""
    return round_up(w.seq_kv, int(knobs["tile_n"]))


def slice_rows(w: AttentionWorkload, knobs: Knobs) -> int:
    """Query rows of a task: whole query tiles."""
    rows = w.heads_q // w.heads_kv * w.seq_q
    return round_up(min(int(knobs["block_m"]), rows), int(knobs["tile_m"]))


def slices(w: AttentionWorkload, knobs: Knobs) -> int:
    """Tasks of one KV head."""
    return ceil_div(w.heads_q // w.heads_kv * w.seq_q, slice_rows(w, knobs))


def workspace(w: AttentionWorkload, knobs: Knobs) -> int:
    """Bytes of the temporaries of one task."""
    keys, tile_m = padded_keys(w, knobs), int(knobs["tile_m"])
    dim = round_up(w.head_dim, int(knobs["unroll"]))
    width = round_up(w.head_dim_v, int(knobs["tile_v"])) if knobs["pack_v"] else 0
    return 4 * (keys * (dim + width) + tile_m * (keys + dim))


class CpuAttentionMaterialised(CpuAttentionSketch):
    name = "cpu_attention_materialised"
    version = 1
    complexity = 1

    def structure_refusal(self, w: AttentionWorkload, target: Target) -> Refusal | None:
        limit = WORKSPACE_IN_L2 * (target.l2_bytes or DEFAULT_L2)
        lanes = vector_unit(target).lanes
        packed_values = round_up(w.head_dim_v, lanes) if w.head_dim_v < lanes else 0
        least = 4 * round_up(w.seq_kv, lanes) * (w.head_dim + packed_values + 1)
        if w.seq_kv > SEQ_KV_MAX or least + 4 * w.head_dim > limit:
            return Refusal("seq_kv", f"{w.seq_kv} keys are too many to hold all scores of a query tile")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        lanes = g.unit.lanes
        return (
            Knob("tile_m", row_tiles(g.rows), "query rows of a register tile"),
            Knob("tile_n", vector_multiples(lanes, w.seq_kv), "keys of a register tile of scores"),
            Knob("tile_v", column_tiles(lanes, w.head_dim_v), "value columns of a register tile of the output"),
            Knob("block_m", at_most(BLOCKS_M, g.rows), "query rows of a parallel task, rounded up to whole tiles"),
            Knob("unroll", UNROLLS, "steps of both reductions unrolled"),
            Knob("pack_v", (False, True), "copy V to float32 tiles once a task, instead of reading it in place"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w = as_attention(workload)
        tiles = (int(knobs["tile_m"]), int(knobs["tile_n"]), int(knobs["tile_v"]))
        broken = tile_violation(w, vector_unit(target), *tiles, int(knobs["unroll"]), bool(knobs["pack_v"]))
        if broken is None and workspace(w, knobs) > WORKSPACE_IN_L2 * (target.l2_bytes or DEFAULT_L2):
            return WORKSPACE
        return broken

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        widths = (int(knobs["tile_n"]), int(knobs["tile_v"]))
        return Resources(
            registers=max(tile_registers(int(knobs["tile_m"]), n, g.unit) for n in widths),
            threads=g.heads * slices(w, knobs),
            workspace_bytes=workspace(w, knobs),
        )

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w = as_attention(workload)
        tiles = (int(knobs["tile_m"]), int(knobs["tile_n"]), int(knobs["tile_v"]))
        return tile_traffic(w, target, slices(w, knobs), *tiles)

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
        out.update(cache_features(target, 4 * tiles[0] * keys, packed, workspace(w, knobs)))
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
