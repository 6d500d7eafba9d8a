"""Decode attention for Hopper (sm_90a): Flash-Decoding's split over the keys, in one kernel."""

from search_space.attention import AttentionWorkload
from search_space.hopper.decode_tiles import ROWS, DecodeTile
from search_space.hopper.launch import Json
from search_space.hopper.limits import (
    HEAD_DIMS,
    INDEX_MAX,
    SHARED_BLOCK_BYTES,
    SHARED_RESERVED_BYTES,
    SHARED_SM_BYTES,
    TMA_BOX,
    ceildiv,
)
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

HALF_TYPES = ("bfloat16", "float16")
# Query rows of one KV head; more of them are compute bound, and the forward sketch's work.
_MOST_ROWS = 128
_MOST_CONSUMERS = 16
_WAVE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STAGES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28, 32)

_FRAGMENTS = Constraint(
    "fragments", "O, scores, probabilities and what is held of Q must fit a thread's registers, or ptxas spills"
)
_SHARED = Constraint(
    "shared_memory", "the ring of K and V and the merge's messages must fit 227 KiB, and all blocks of an SM 228 KiB"
)
_BOX = Constraint("box", "TMA loads at most 256 rows at once")
_ROW_TILES = Constraint("row_tiles", "every query row of a KV head needs a place in a tile of 16")
_WARPS = Constraint("warps", "at most 16 warps of a block compute")
_SCHEDULE = Constraint("schedule", "only a block that takes several pieces can fetch the next one")
_WAVES = Constraint("waves", "more waves that cut the keys no further are the same program")
_INDEX = Constraint("index", "Q, O and the workspace are indexed with 32 bits")

# (warps, warp_keys, blocks_per_sm); the last ones leave registers for many tiles of rows.
_SEEDS = ((4, 16, 1), (4, 16, 2), (4, 32, 1), (8, 16, 1), (2, 32, 2), (2, 16, 1), (1, 32, 1), (1, 16, 1))


def attention_of(workload: Workload) -> AttentionWorkload:
    assert isinstance(workload, AttentionWorkload)
    return workload


class CudaAttentionDecode(Sketch):
    name = "cuda_attention_decode"
    version = 1
    op = "attention"
    target_kind = "cuda"
    runtime_extents = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")
    complexity = 3

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = attention_of(workload)
        if target.arch not in ("sm_90", "sm_90a"):
            return Refusal("target.arch", f"TMA needs sm_90a, the device is {target.arch}", ("sm_90a",))
        if w.dtype not in HALF_TYPES:
            return Refusal("dtype", f"16-bit operands only, got {w.dtype}", HALF_TYPES)
        for name in ("head_dim", "head_dim_v"):
            if (dim := getattr(w, name)) not in HEAD_DIMS:
                reason = f"rows of a multiple of 16 bytes (TMA), at most 256 elements, got {dim}"
                return Refusal(name, reason, tuple(map(str, HEAD_DIMS)))
        if w.softmax_scale <= 0:
            return Refusal("scale", f"must be above 0 on this target, got {w.softmax_scale}")
        if w.kv_layout != "dense":
            return Refusal("kv_layout", f"{w.kv_layout} has no sketch on this target yet", ("dense",))
        if w.pass_ != "forward":
            return Refusal("pass", f"{w.pass_} has no sketch on this target yet", ("forward",))
        if (rows := _rows(w)) > _MOST_ROWS:
            return Refusal("seq_q", f"{rows} query rows a KV head are not few: at most {_MOST_ROWS}")
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = attention_of(workload)
        need = ceildiv(_rows(w), ROWS)
        return (
            Knob("row_tiles", tuple(t for t in (1, 2, 3, 4, 6, 8) if need <= t <= 2 * need), "query rows / 16"),
            Knob("warps", (1, 2, 4, 8), "warps that share a tile of keys"),
            Knob("warp_keys", (16, 32, 64), "keys of a warp in a tile"),
            Knob("stages", _STAGES, "tiles of K and V in shared memory"),
            Knob("q_in", ("registers", "shared"), "where a warp keeps its query rows"),
            Knob("blocks_per_sm", (1, 2, 3), "blocks that share a multiprocessor"),
            Knob("waves", _WAVE_COUNTS, "pieces of the keys for each resident block, about"),
            Knob("schedule", ("static", "dynamic"), "pieces are dealt to blocks ahead, or fetched when free"),
            Knob("dependent", (False, True), "programmatic dependent launch: set up under the kernel before"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w = attention_of(workload)
        c = tile_of(w, knobs)
        if c.rows < _rows(w):
            return _ROW_TILES
        if c.consumers > _MOST_CONSUMERS:
            return _WARPS
        if c.block_kv > TMA_BOX:
            return _BOX
        if c.fragments > c.fragment_room:
            return _FRAGMENTS
        share = SHARED_SM_BYTES // c.blocks_per_sm - SHARED_RESERVED_BYTES
        if c.shared_bytes() > min(share, target.shared_bytes or SHARED_BLOCK_BYTES):
            return _SHARED
        units, (_, pieces) = w.batch * w.heads_kv, _cut(w, c, target, knobs)
        if knobs["schedule"] == "dynamic" and units * pieces <= target.cores * c.blocks_per_sm:
            return _SCHEDULE
        fewer = [n for n in _WAVE_COUNTS if n < int(knobs["waves"])]
        if fewer and _cut(w, c, target, {**knobs, "waves": fewer[-1]})[1] == pieces:
            return _WAVES
        elements = w.batch * w.heads_q * w.seq_q * max(w.head_dim, w.head_dim_v)
        waves = target.cores * c.blocks_per_sm * int(knobs["waves"])
        return _INDEX if max(elements, units * pieces * c.piece_floats, waves) > INDEX_MAX else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        units, (_, pieces) = w.batch * w.heads_kv, _cut(w, c, target, knobs)
        workspace = (4 * units * pieces * c.piece_floats if pieces > 1 else 16) + 4 * units + 4
        return Resources(c.registers, c.shared_bytes(), c.threads, workspace)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Memory: every visible key once. L2: Q once for each warp and piece, pieces written and read once."""
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        units, (_, pieces) = w.batch * w.heads_kv, _cut(w, c, target, knobs)
        seen = min(w.seq_kv, _tiles(w, c) * c.block_kv)
        kv = units * seen * (w.head_dim + w.head_dim_v) * 2.0
        small = w.batch * w.heads_q * w.seq_q * (w.head_dim + w.head_dim_v) * 2.0
        q = 2.0 * w.head_dim * (1 if c.q_in == "shared" else c.warps)
        again = units * pieces * _rows(w) * (q + (8.0 * (w.head_dim_v + 2) if pieces > 1 else 0.0))
        return Traffic(memory_bytes=kv + small, l2_bytes=kv + small + again)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        resident = target.cores * c.blocks_per_sm
        units, (length, pieces) = w.batch * w.heads_kv, _cut(w, c, target, knobs)
        items, tiles = units * pieces, units * _tiles(w, c)
        # The block with the most tiles ends last.
        longest = ceildiv(items, resident) * length
        return {
            "tile.m": float(c.rows),
            "tile.n": float(c.block_kv),
            "tile.k": float(w.head_dim),
            "tile.waste": 1.0 - w.seq_kv / (ceildiv(w.seq_kv, c.block_kv) * c.block_kv),
            "gpu.waves": items / resident,
            "gpu.wave_efficiency": min(1.0, tiles / (longest * resident)),
            "gpu.busy_share": min(1.0, items / resident),
            "gpu.split": float(pieces),
            "gpu.bytes_in_flight": float(c.stages * c.stage_bytes * c.blocks_per_sm),
            "gpu.accumulators": float(c.fragments),
            "gpu.blocks_per_sm": float(c.blocks_per_sm),
            "attention.row_waste": 1.0 - _rows(w) / c.rows,
            "attention.warps": float(c.warps),
            "attention.warp_keys": float(c.warp_keys),
            "attention.tiles_of_piece": float(length),
            "attention.dynamic": float(knobs["schedule"] == "dynamic"),
            "attention.q_staged": float(c.q_in == "shared"),
            "attention.dependent": float(bool(knobs["dependent"])),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """The ring as deep as shared memory allows."""
        w = attention_of(workload)
        row_tiles = min(t for t in (1, 2, 3, 4, 6, 8) if t * ROWS >= _rows(w))
        q_in = "registers" if max(w.head_dim, w.head_dim_v) <= 128 else "shared"
        chosen: list[Knobs] = []
        for warps, warp_keys, blocks in _SEEDS:
            for waves, schedule in ((1, "static"), (8, "dynamic"), (1, "dynamic")):
                knobs: Knobs = {
                    "row_tiles": row_tiles, "warps": warps, "warp_keys": warp_keys, "stages": 2, "q_in": q_in,
                    "blocks_per_sm": blocks, "waves": waves, "schedule": schedule, "dependent": True,
                }  # fmt: skip
                if (filled := most_stages(w, target, knobs)) is not None:
                    chosen.append(filled)
        return tuple(chosen)


def _rows(w: AttentionWorkload) -> int:
    """Query rows that share a KV head."""
    return w.heads_q // w.heads_kv * w.seq_q


def _tiles(w: AttentionWorkload, c: DecodeTile) -> int:
    """Tiles of keys that a unit's rows see."""
    first = max(0, w.seq_kv - w.seq_q - w.window_left) // c.block_kv if w.window_left >= 0 else 0
    return ceildiv(w.seq_kv, c.block_kv) - first


def _cut(w: AttentionWorkload, c: DecodeTile, target: Target, knobs: Knobs) -> tuple[int, int]:
    """(tiles of a piece, pieces of a unit), as `DecodeTile.cut` has them in formulas."""
    tiles = _tiles(w, c)
    resident = target.cores * c.blocks_per_sm * int(knobs["waves"])
    length = ceildiv(tiles, min(tiles, max(1, resident // (w.batch * w.heads_kv))))
    return length, ceildiv(tiles, length)


def most_stages(w: AttentionWorkload, target: Target, knobs: Knobs) -> Knobs | None:
    """`knobs` with the deepest ring that is legal; None where none is."""
    legal = [k for s in _STAGES if SKETCH.violated(w, target, k := {**knobs, "stages": s}) is None]
    return legal[-1] if legal else None


def tile_of(w: AttentionWorkload, knobs: Knobs) -> DecodeTile:
    return DecodeTile(
        head_dim=w.head_dim,
        head_dim_v=w.head_dim_v,
        dtype=w.dtype,
        scale=w.softmax_scale,
        softcap=w.softcap,
        causal=w.causal,
        window_left=w.window_left,
        window_right=w.window_right,
        lse=w.lse,
        layout=w.layout,
        row_tiles=int(knobs["row_tiles"]),
        warps=int(knobs["warps"]),
        warp_keys=int(knobs["warp_keys"]),
        stages=int(knobs["stages"]),
        blocks_per_sm=int(knobs["blocks_per_sm"]),
        q_in=str(knobs["q_in"]),
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[DecodeTile, Json]:
    """The tile and the launch description of a choice."""
    c = tile_of(attention_of(workload), knobs)
    return c, c.launch(
        target.cores,
        waves=int(knobs["waves"]),
        dynamic=knobs["schedule"] == "dynamic",
        dependent=bool(knobs["dependent"]),
    )


SKETCH = CudaAttentionDecode()
