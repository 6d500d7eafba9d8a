"""Decode attention: few query rows, so that reading K and V is the work (Flash-Decoding's split over the keys).

The query rows of all heads that share a KV head go over its keys together. K is not packed: a score is a dot product
whose vectors run along head_dim. Where batch and heads do not fill the cores, the keys are split too; the outputs of
the pieces are combined at the end by their maxima and sums.
"""

from search_space.attention import AttentionWorkload
from search_space.cpu_attention import (
    REGISTERS,
    CpuAttentionSketch,
    Geometry,
    accumulators,
    as_attention,
    cache_features,
    column_tiles,
    grain_features,
    nearest_choice,
    row_tiles,
    tile_registers,
)
from search_space.cpu_model import at_most, ceil_div, overlap_waste, round_up, vector_unit
from search_space.dtypes import DTYPES
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

# Beyond this packing K pays for itself.
ROWS_MAX = 256
KEYS = (1, 2, 3, 4, 6, 8)
BLOCKS_N = (32, 64, 128, 256, 512, 1024)
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
SPLIT = Constraint("split", "each piece must hold at least one block of keys")


def block_keys(w: AttentionWorkload, knobs: Knobs, lanes: int) -> int:
    """Keys of a block in whole vectors of scores."""
    return round_up(min(int(knobs["block_n"]), w.seq_kv), lanes)


def split_keys(w: AttentionWorkload, knobs: Knobs, lanes: int) -> int:
    """Keys of one piece: whole vectors of scores."""
    return round_up(ceil_div(w.seq_kv, int(knobs["split_kv"])), lanes)


def pieces(w: AttentionWorkload, knobs: Knobs, lanes: int) -> int:
    """Pieces that the keys really fall into."""
    return ceil_div(w.seq_kv, split_keys(w, knobs, lanes))


class CpuAttentionDecode(CpuAttentionSketch):
    name = "cpu_attention_decode"
    version = 1
    complexity = 2

    def structure_refusal(self, w: AttentionWorkload, target: Target) -> Refusal | None:
        geometry = Geometry.of(w, target)
        if geometry.rows > ROWS_MAX:
            return Refusal("seq_q", f"{geometry.rows} query rows a KV head are not few")
        for name in ("head_dim", "head_dim_v"):
            if getattr(w, name) < geometry.unit.lanes:
                return Refusal(name, f"shorter than a vector of {geometry.unit.lanes}")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        return (
            Knob("tile_m", row_tiles(g.rows), "query rows that share each load of K and V"),
            Knob("tile_n", at_most(KEYS, w.seq_kv), "keys whose dot products run side by side"),
            Knob("tile_v", column_tiles(g.unit.lanes, w.head_dim_v), "value columns of a register tile of the output"),
            Knob("block_n", at_most(BLOCKS_N, w.seq_kv), "keys between two updates of the running maximum"),
            Knob("split_kv", at_most(SPLITS, max(1, w.seq_kv // 32)), "pieces of the keys that run in parallel"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w, unit = as_attention(workload), vector_unit(target)
        tile_m, tile_n = int(knobs["tile_m"]), int(knobs["tile_n"])
        # A score tile holds a vector per (row, key), one of K per key and one of Q.
        most = max(tile_m * tile_n + tile_n + 1, tile_registers(tile_m, int(knobs["tile_v"]), unit))
        if most > unit.registers:
            return REGISTERS
        if int(knobs["split_kv"]) > 1 and split_keys(w, knobs, unit.lanes) < int(knobs["block_n"]):
            return SPLIT
        return None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        tile_m, tile_n = int(knobs["tile_m"]), int(knobs["tile_n"])
        return Resources(
            registers=max(tile_m * tile_n + tile_n + 1, tile_registers(tile_m, int(knobs["tile_v"]), g.unit)),
            threads=g.heads * pieces(w, knobs, g.unit.lanes),
            workspace_bytes=self._workspace(w, g, knobs),
        )

    def _workspace(self, w: AttentionWorkload, g: Geometry, knobs: Knobs) -> int:
        """Bytes of the temporaries of one task, and of its piece's output."""
        rows = round_up(g.rows, int(knobs["tile_m"]))
        width = round_up(w.head_dim_v, int(knobs["tile_v"]))
        dim = round_up(w.head_dim, g.unit.lanes)
        return 4 * (rows * (dim + width + 2) + int(knobs["tile_m"]) * block_keys(w, knobs, g.unit.lanes))

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """K and V cross every level once a row tile of a KV head; memory once."""
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        passes = ceil_div(g.rows, int(knobs["tile_m"]))
        stored = DTYPES[w.dtype].itemsize * (w.head_dim + w.head_dim_v)
        pairs = g.heads * w.visible_pairs() / w.seq_q
        per_score = 1 / int(knobs["tile_m"]) + 1 / int(knobs["tile_n"])
        loads = pairs * g.rows * 4.0 * (w.head_dim * per_score + w.head_dim_v / int(knobs["tile_m"]))
        memory = float(w.min_bytes())
        return Traffic(memory, memory, pairs * stored * passes, loads)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        tile_m, tile_n, tile_v = (int(knobs[n]) for n in ("tile_m", "tile_n", "tile_v"))
        block, count = block_keys(w, knobs, g.unit.lanes), pieces(w, knobs, g.unit.lanes)
        stored = DTYPES[w.dtype].itemsize * (w.head_dim + w.head_dim_v)
        out: dict[str, float] = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_v": tile_v,
            "vector_lanes": g.unit.lanes,
            "accumulators": tile_m * tile_n,
            "accumulators_v": accumulators(tile_m, tile_v, g.unit),
            "register_pressure": self.resources(w, target, knobs).registers / g.unit.registers,
            "loads_per_fma": (tile_m + tile_n) / (tile_m * tile_n),
            "tail_waste_m": overlap_waste(g.rows, tile_m),
            "tail_waste_n": overlap_waste(block, tile_n),
            "tail_waste_v": overlap_waste(w.head_dim_v, tile_v),
            "block_n": block,
            "blocks": ceil_div(split_keys(w, knobs, g.unit.lanes), block),
            "split_kv": count,
            "row_passes": ceil_div(g.rows, tile_m),
        }
        out.update(grain_features(g.heads * count, target))
        out.update(cache_features(target, 4 * tile_m * block, block * stored, self._workspace(w, g, knobs)))
        return out

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """All rows in one tile where they fit, keys split until every core has two pieces."""
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        split = max(1, ceil_div(2 * target.cores, g.heads))
        wanted: list[Knobs] = []
        for tile_m, tile_n, vectors in ((4, 2, 2), (1, 4, 8), (2, 4, 4)):
            for block_n, split_kv in ((128, split), (512, split), (32, split), (512, 1)):
                sizes: Knobs = {"tile_m": min(tile_m, g.rows), "tile_n": tile_n, "tile_v": vectors * g.unit.lanes}
                wish = {**sizes, "block_n": block_n, "split_kv": split_kv}
                choice = nearest_choice(self.knobs(w, target), wish)
                if choice not in wanted and self.violated(w, target, choice) is None:
                    wanted.append(choice)
        return tuple(wanted)


SKETCH = CpuAttentionDecode()
