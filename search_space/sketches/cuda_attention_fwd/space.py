"""Forward attention for Hopper (sm_90a): FlashAttention-3's ideas (arXiv:2407.08608) as knobs."""

import math

from search_space.attention import UNLIMITED, AttentionWorkload
from search_space.hopper.attention_tiles import AttentionTile, Json
from search_space.hopper.limits import HEAD_DIMS, INDEX_MAX, SHARED_BLOCK_BYTES, ceildiv
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

HALF_TYPES = ("bfloat16", "float16")
# float16 ends at 2^16; a stale maximum lets a probability grow to 2^lazy, and sums of 16 of them stay finite.
_LAZY_FLOAT16 = 12

_ACCUMULATORS = Constraint(
    "accumulators", "scores, output and packed probabilities must fit a consumer's registers, or ptxas spills"
)
_SHARED = Constraint("shared_memory", "Q, the rings of K and V and barriers must fit the 227 KiB a block can have")
_PINGPONG = Constraint("pingpong", "taking turns needs two or three consumers, each with two products to issue at once")
_PV_WAIT = Constraint("pv_wait", "the wait for P V can only move where the next scores are computed under it")
_LAZY = Constraint("lazy", "float16 probabilities must not overflow under a stale maximum")
_RESCALE = Constraint("rescale", "O can be rescaled under the powers only if P V was waited for just before them")
_Q_BUFFERS = Constraint("q_buffers", "a second Q buffer serves only a block that computes several tiles")
_INDEX = Constraint("index", "plain stores index O with 32 bits")
_HALF = Constraint("half", "half a tile of keys must be whole steps of 16")
_STAGING = Constraint("staging", "O is staged where Q was, which must be as wide")
_ONE_CONSUMER = Constraint("one_consumer", "one consumer has no other warpgroup to pass over the diagonal before")

# (block_kv, consumers, q_buffers, epilogue, lazy, pv_wait) by head_dim, that shapes on an H200 ended with.
_SEEDS: dict[int, tuple[tuple[int, int, int, str, int, str], ...]] = {
    64: ((128, 3, 2, "tma", 0, "late"), (128, 2, 2, "tma", 0, "late"), (128, 3, 2, "tma", 0, "early")),
    128: (
        (128, 2, 2, "tma", 0, "late"),
        (80, 3, 2, "tma", 0, "late"),
        (80, 3, 2, "tma", 8, "early"),
        (128, 2, 2, "tma", 0, "early"),
    ),
    # Not raced yet: what fits beside Q, and what 128 and 256 ended with.
    192: (
        (128, 2, 1, "tma", 0, "late"),
        (112, 2, 1, "tma", 0, "late"),
        (96, 2, 1, "tma", 0, "late"),
        (96, 2, 1, "tma", 8, "early"),
        (96, 2, 1, "direct", 8, "early"),
        (80, 2, 1, "direct", 8, "early"),
    ),
    256: (
        (80, 2, 1, "direct", 8, "early"),
        (80, 2, 1, "tma", 8, "early"),
        (80, 2, 1, "direct", 0, "late"),
        (64, 2, 1, "direct", 8, "early"),
    ),
}


def attention_of(workload: Workload) -> AttentionWorkload:
    assert isinstance(workload, AttentionWorkload)
    return workload


class CudaAttentionFwd(Sketch):
    name = "cuda_attention_fwd"
    version = 1
    op = "attention"
    target_kind = "cuda"
    runtime_extents = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")
    complexity = 2

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = attention_of(workload)
        if target.arch not in ("sm_90", "sm_90a"):
            return Refusal("target.arch", f"wgmma and TMA need sm_90a, the device is {target.arch}", ("sm_90a",))
        if w.dtype not in HALF_TYPES:
            return Refusal("dtype", f"16-bit operands only, got {w.dtype}", HALF_TYPES)
        for name in ("head_dim", "head_dim_v"):
            if (dim := getattr(w, name)) not in HEAD_DIMS:
                reason = f"rows of a multiple of 16 bytes (TMA), at most 256 elements, got {dim}"
                return Refusal(name, reason, tuple(map(str, HEAD_DIMS)))
        return _refuse_variants(w)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = attention_of(workload)
        heads = w.batch * w.heads_q
        groups = (0, *(g for g in (1, 2, 4, 8, 16, 32) if g < heads))
        return (
            Knob("block_kv", tuple(range(32, 193, 16)), "keys of a tile"),
            Knob("stages", (1, 2, 3, 4), "tiles in the ring of K, and in that of V"),
            Knob("q_buffers", (1, 2), "query tiles in flight: with two the next one loads early"),
            Knob("consumers", (1, 2, 3), "warpgroups that multiply, 64 query rows each (block_q)"),
            Knob("overlap", (False, True), "the next tile's Q K runs with this one's P V, under the softmax"),
            Knob("pingpong", (False, True), "warpgroups take turns issuing products"),
            Knob("pv_wait", ("early", "max", "late"), "how much softmax is done before P V is waited for"),
            Knob(
                "rescale",
                ("after", "under", "before"),
                "O is rescaled after, or under, the powers, or under the next Q K",
            ),
            Knob("lazy", (0, 8), "rescale only when a row maximum grew by more (log2 units)"),
            Knob(
                "diagonal",
                ("mask", "skip", "half") if _bounded(w) else ("mask",),
                "tiles, or half tiles, above a warpgroup's diagonal",
            ),
            Knob("epilogue", ("direct", "tma"), "O leaves from registers, or staged where Q was in bulk"),
            Knob("schedule", ("single", "static", "dynamic"), "one tile a block, dealt ahead, or fetched when free"),
            Knob("group", groups, "heads side by side in launch order, 0 for all (longest tiles first)"),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w = attention_of(workload)
        c = tile_of(w, knobs)
        if c.accumulators > c.accumulator_room:
            return _ACCUMULATORS
        if c.shared_bytes() > min(SHARED_BLOCK_BYTES, target.shared_bytes or SHARED_BLOCK_BYTES):
            return _SHARED
        if c.pingpong and not (c.overlap and c.consumers > 1):
            return _PINGPONG
        if c.pv_wait != "early" and not c.overlap:
            return _PV_WAIT
        if c.rescale == "under" and c.pv_wait != "max":
            return _RESCALE
        if c.dtype == "float16" and c.lazy > _LAZY_FLOAT16:
            return _LAZY
        if c.q_buffers > 1 and knobs["schedule"] == "single":
            return _Q_BUFFERS
        if c.diagonal == "half" and c.block_kv % 32:
            return _HALF
        if c.diagonal == "skip" and c.consumers == 1:
            return _ONE_CONSUMER
        if c.epilogue == "tma" and c.v_chunks > c.k_chunks:
            return _STAGING
        elements = w.batch * w.heads_q * w.seq_q * w.head_dim_v
        return _INDEX if c.epilogue == "direct" and elements > INDEX_MAX else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        """Registers: of a thread at launch, before warpgroups exchange them."""
        c = tile_of(attention_of(workload), knobs)
        return Resources(c.entry_registers, c.shared_bytes(), c.threads, 4 if c.dynamic else 0)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Memory: every operand once. L2: K and V once for each query tile, as far as it sees them."""
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        q_tiles = ceildiv(w.seq_q, c.block_q)
        seen = _key_tiles(w, c) / max(1, q_tiles)
        kv = w.batch * w.heads_q * q_tiles * seen * float(c.k_bytes + c.v_bytes)
        return Traffic(memory_bytes=float(w.min_bytes()), l2_bytes=kv + w.min_bytes())

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        tiles = w.batch * w.heads_q * ceildiv(w.seq_q, c.block_q)
        waves = tiles / target.cores
        key_tiles = _key_tiles(w, c)
        products = key_tiles * c.block_q * c.block_kv
        persistent = knobs["schedule"] != "single"
        return {
            "tile.m": float(c.block_q),
            "tile.n": float(c.block_kv),
            "tile.k": float(c.head_dim),
            "tile.waste": 1.0 - min(1.0, w.visible_pairs() / products) if products else 0.0,
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, waves),
            "gpu.bytes_in_flight": float(c.stages * (c.k_bytes + c.v_bytes)),
            "gpu.accumulators": float(c.accumulators),
            "gpu.pingpong": float(c.pingpong),
            "attention.dim_waste": 1.0 - (w.head_dim + w.head_dim_v) / (64.0 * (c.k_chunks + c.v_chunks)),
            "attention.softcap": float(c.softcap > 0),
            "attention.key_tiles_of_row": key_tiles / ceildiv(w.seq_q, c.block_q),
            "attention.overlap": float(c.overlap),
            "attention.pv_wait": float(("early", "max", "late").index(c.pv_wait)),
            "attention.rescale": float(("after", "under", "before").index(c.rescale)),
            "attention.lazy": float(c.lazy),
            "attention.diagonal": float(("mask", "skip", "half").index(c.diagonal)),
            "attention.direct": float(c.epilogue == "direct"),
            "attention.early_q": float(persistent and c.q_buffers > 1),
            "attention.persistent": float(persistent),
            "attention.dynamic": float(c.dynamic),
            "attention.group": float(int(knobs["group"]) or w.batch * w.heads_q),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = attention_of(workload)
        schedules = ("static", "dynamic", "single") if w.causal else ("static", "single")
        chosen: list[Knobs] = []
        widest = max(w.head_dim, w.head_dim_v)
        nearest = min(dim for dim in _SEEDS if dim >= widest)
        for block_kv, consumers, q_buffers, epilogue, lazy, pv_wait in _SEEDS[nearest]:
            for schedule in schedules:
                knobs: Knobs = {
                    "block_kv": block_kv, "stages": 2, "consumers": consumers, "overlap": True, "pingpong": True,
                    "q_buffers": 1 if schedule == "single" else q_buffers, "pv_wait": pv_wait, "rescale": "after",
                    "lazy": lazy, "diagonal": "skip" if _bounded(w) else "mask", "epilogue": epilogue,
                    "schedule": schedule, "group": 4 if w.batch * w.heads_q > 4 else 0,
                }  # fmt: skip
                if self.violated(w, target, knobs) is None:
                    chosen.append(knobs)
        return tuple(chosen)


def _refuse_variants(w: AttentionWorkload) -> Refusal | None:
    if w.softmax_scale <= 0:
        return Refusal("scale", f"must be above 0 on this target, got {w.softmax_scale}")
    if w.kv_layout != "dense":
        return Refusal("kv_layout", f"{w.kv_layout} has no sketch on this target yet", ("dense",))
    if w.pass_ != "forward":
        return Refusal("pass", f"{w.pass_} has no sketch on this target yet", ("forward",))
    return None


def _bounded(w: AttentionWorkload) -> bool:
    """Whether a query's keys end before the last one."""
    return w.causal or w.window_right != UNLIMITED


def _key_tiles(w: AttentionWorkload, c: AttentionTile) -> int:
    """Key tiles of all query tiles of one head."""
    q_tiles = ceildiv(w.seq_q, c.block_q)
    if not _bounded(w) and w.window_left == UNLIMITED:
        return q_tiles * ceildiv(w.seq_kv, c.block_kv)
    shift = w.seq_kv - w.seq_q
    counted, total = min(q_tiles, _ROWS_COUNTED), 0
    for i in range(counted):
        end = min(w.seq_kv, min((i + 1) * c.block_q, w.seq_q) + shift + c.right) if _bounded(w) else w.seq_kv
        first = max(0, i * c.block_q + shift - w.window_left) if w.window_left != UNLIMITED else 0
        total += ceildiv(max(1, end), c.block_kv) - first // c.block_kv
    return total * q_tiles // counted


_ROWS_COUNTED = 4096  # more query tiles than this are extrapolated: features are made thousands of times a round


def tile_of(w: AttentionWorkload, knobs: Knobs) -> AttentionTile:
    return AttentionTile(
        head_dim=w.head_dim,
        head_dim_v=w.head_dim_v,
        dtype=w.dtype,
        causal=w.causal,
        window_left=w.window_left,
        window_right=w.window_right,
        softcap=w.softcap,
        scale=w.softmax_scale,
        lse=w.lse,
        layout=w.layout,
        block_kv=int(knobs["block_kv"]),
        stages=int(knobs["stages"]),
        q_buffers=int(knobs["q_buffers"]),
        consumers=int(knobs["consumers"]),
        overlap=bool(knobs["overlap"]),
        pingpong=bool(knobs["pingpong"]),
        rescale=str(knobs["rescale"]),
        lazy=int(knobs["lazy"]),
        pv_wait=str(knobs["pv_wait"]),
        diagonal=str(knobs["diagonal"]),
        epilogue=str(knobs["epilogue"]),
        dynamic=knobs["schedule"] == "dynamic",
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[AttentionTile, Json]:
    """The tile and the launch description of a choice."""
    c = tile_of(attention_of(workload), knobs)
    return c, c.launch(target.cores, persistent=knobs["schedule"] != "single", group=int(knobs["group"]))


SKETCH = CudaAttentionFwd()
