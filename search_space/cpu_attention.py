"""What the CPU attention sketches share: what they refuse, the domains of their tiles, and features of one meaning."""

from dataclasses import dataclass

from search_space.attention import AttentionWorkload
from search_space.cpu_model import VectorUnit, at_most, ceil_div, grain_waste, overlap_waste, vector_unit
from search_space.dtypes import DTYPES
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

DTYPES_IN = ("float32", "bfloat16", "float16")
# Positions and window ends are summed in 32 bits.
SEQ_MAX = 2**30
ROW_TILES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)

REGISTERS = Constraint("registers", "the tile's accumulators and operands must fit the vector registers")
VALUE_TILE = Constraint("value_tile", "a column tile wider than head_dim_v needs V packed")
UNROLL = Constraint("unroll", "V is read in place: whole unrolled steps must divide seq_kv")


def as_attention(workload: Workload) -> AttentionWorkload:
    assert isinstance(workload, AttentionWorkload)
    return workload


class CpuAttentionSketch(Sketch):
    """Base of the CPU attention sketches: `structure_refusal` says what this structure cannot do."""

    op = "attention"
    target_kind = "cpu"

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = as_attention(workload)
        if w.kv_layout != "dense":
            return Refusal("kv_layout", f"{w.kv_layout} keys and values have no CPU sketch", ("dense",))
        if w.pass_ != "forward":
            return Refusal("pass", f"the {w.pass_} pass has no CPU sketch", ("forward",))
        if w.dtype not in DTYPES_IN:
            return Refusal("dtype", f"{w.dtype} has no CPU sketch", DTYPES_IN)
        for name in ("seq_q", "seq_kv"):
            if getattr(w, name) > SEQ_MAX:
                return Refusal(name, f"more than {SEQ_MAX} positions have no CPU sketch")
        return self.structure_refusal(w, target)

    def structure_refusal(self, w: AttentionWorkload, target: Target) -> Refusal | None:
        return None


@dataclass(frozen=True)
class Geometry:
    """Sizes of one task. `rows`: query rows of all heads that share a KV head; `heads`: KV heads of the batch."""

    group: int
    rows: int
    heads: int
    unit: VectorUnit

    @staticmethod
    def of(w: AttentionWorkload, target: Target) -> "Geometry":
        group = w.heads_q // w.heads_kv
        return Geometry(group, group * w.seq_q, w.batch * w.heads_kv, vector_unit(target))


def vector_multiples(lanes: int, limit: int) -> tuple[int, ...]:
    """Widths of 1, 2, 3, 4 vectors, no wider than `limit` needs."""
    most = max(1, ceil_div(limit, lanes))
    return tuple(lanes * n for n in (1, 2, 3, 4) if n <= most)


def column_tiles(lanes: int, head_dim_v: int) -> tuple[int, ...]:
    """Widths of a tile of value columns: whole vectors that head_dim_v holds, one padded vector if it holds none."""
    return tuple(lanes * n for n in (1, 2, 3, 4, 6, 8) if lanes * n <= max(lanes, head_dim_v))


def nearest_choice(knobs: tuple[Knob, ...], wanted: Knobs) -> Knobs:
    """For each knob the value of its domain that is nearest to the wanted one."""
    return {k.name: min(k.values, key=lambda v: (abs(int(v) - int(wanted[k.name])), int(v))) for k in knobs}


def row_tiles(rows: int) -> tuple[int, ...]:
    return at_most(ROW_TILES, rows)


def accumulators(rows: int, columns: int, unit: VectorUnit) -> int:
    """Vector registers that a tile of rows x columns accumulates in."""
    return rows * (columns // unit.lanes)


def tile_registers(rows: int, columns: int, unit: VectorUnit) -> int:
    """Accumulators, one row of operand vectors, one broadcast scalar."""
    return accumulators(rows, columns, unit) + columns // unit.lanes + 1


def tile_violation(
    w: AttentionWorkload, unit: VectorUnit, tile_m: int, tile_n: int, tile_v: int, unroll: int, pack_v: bool
) -> Constraint | None:
    """The first rule that a choice of register tiles breaks; `tile_n` is 0 where keys are not tiled in registers."""
    if max(tile_registers(tile_m, n, unit) for n in (tile_n, tile_v) if n) > unit.registers:
        return REGISTERS
    if not pack_v and tile_v > w.head_dim_v:
        return VALUE_TILE
    if not pack_v and w.seq_kv % unroll:
        return UNROLL
    return None


def mean_visible(w: AttentionWorkload) -> float:
    """Keys that one query row sees, on average."""
    return w.visible_pairs() / w.seq_q


def tile_features(
    w: AttentionWorkload, target: Target, tile_m: int, tile_n: int, tile_v: int, unroll: int
) -> dict[str, float]:
    """Features of the register tiles, of their tails and of the loads that each multiply-add costs."""
    unit = vector_unit(target)
    rows = w.heads_q // w.heads_kv * w.seq_q
    score, output = accumulators(tile_m, tile_n, unit), accumulators(tile_m, tile_v, unit)
    return {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_v": tile_v,
        "unroll_k": unroll,
        "vector_lanes": unit.lanes,
        "accumulators": score,
        "accumulators_v": output,
        "register_pressure": max(tile_registers(tile_m, n, unit) for n in (tile_n, tile_v)) / unit.registers,
        "loads_per_fma": (tile_m + tile_n / unit.lanes) / score,
        "loads_per_fma_v": (tile_m + tile_v / unit.lanes) / output,
        "tail_waste_m": overlap_waste(rows, tile_m),
        "tail_waste_n": overlap_waste(w.seq_kv, tile_n),
        "tail_waste_v": overlap_waste(w.head_dim_v, tile_v),
        "tail_waste_k": overlap_waste(w.head_dim, unroll),
    }


def grain_features(grains: int, target: Target) -> dict[str, float]:
    """How the parallel pieces fall onto the cores."""
    return {
        "parallel_grains": grains,
        "grains_per_core": grains / max(1, target.cores),
        "grain_waste": grain_waste(grains, target.cores),
    }


def cache_features(target: Target, scores: int, block: int, workspace: int) -> dict[str, float]:
    """Working sets (bytes) over the cache that should hold them: the score tile in L1, the key block in L2."""
    return {
        "l1_footprint": scores,
        "l2_footprint": block,
        "l1_ratio": scores / max(1, target.l1_bytes),
        "l2_ratio": block / max(1, target.l2_bytes),
        "workspace_bytes": workspace,
        "workspace_ratio": workspace / max(1, target.l2_bytes),
    }


def tile_traffic(w: AttentionWorkload, target: Target, passes: float, tile_m: int, tile_n: int, tile_v: int) -> Traffic:
    """`passes`: how often the visible keys and values of a KV head are fetched into a core's L2.

    L1 counts the loads of the register tiles, L2 what each tile of query rows reads of K and V again.
    """
    unit = vector_unit(target)
    group = w.heads_q // w.heads_kv
    pairs = w.batch * w.heads_q * w.visible_pairs()
    visible = w.batch * w.heads_kv * min(float(w.seq_kv), mean_visible(w) * (2 if w.causal else 1))
    stored = DTYPES[w.dtype].itemsize * (w.head_dim + w.head_dim_v)
    per_score = (tile_m + tile_n / unit.lanes) / accumulators(tile_m, tile_n, unit)
    per_output = (tile_m + tile_v / unit.lanes) / accumulators(tile_m, tile_v, unit)
    fetched = visible * stored * passes
    fits = not target.l3_bytes or w.footprint_bytes() <= target.l3_bytes
    return Traffic(
        memory_bytes=float(w.min_bytes()) if fits else max(float(w.min_bytes()), fetched),
        l3_bytes=float(w.min_bytes()) + fetched,
        l2_bytes=pairs / max(1, min(tile_m, group * w.seq_q)) * 4.0 * (w.head_dim + w.head_dim_v),
        l1_bytes=pairs * 4.0 * (w.head_dim * per_score + w.head_dim_v * per_output),
    )
