"""Backward attention for Hopper (sm_90a): FlashAttention's second pass (arXiv:2307.08691) as knobs."""

import math

from search_space.attention import UNLIMITED, AttentionWorkload
from search_space.hopper.backward_tiles import BackwardTile, Json
from search_space.hopper.limits import INDEX_MAX, ceildiv, round_up
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

HALF_TYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 128)
# Tiles of 128 queries leave no registers for S, dP, dK, dV and dQ at once: ptxas serialises wgmma (C7512, nvcc 13.0).
BLOCK_Q = 64

_ACCUMULATORS = Constraint(
    "accumulators", "scores, their gradients, dK and dV must fit a consumer's registers, or ptxas spills"
)
_SHARED = Constraint(
    "shared_memory", "K, V, rings of Q and dO, dS and barriers must fit the 227 KiB a block can have, two blocks half"
)
_DQ_SHARE = Constraint("dq_share", "each warpgroup computes 64 rows of dQ, or a share of them of at least 32 columns")
_INDEX = Constraint("index", "dQ and its float32 sums are indexed with 32 bits")


def attention_of(workload: Workload) -> AttentionWorkload:
    assert isinstance(workload, AttentionWorkload)
    return workload


class CudaAttentionBwd(Sketch):
    name = "cuda_attention_bwd"
    version = 1
    op = "attention"
    target_kind = "cuda"
    runtime_extents = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")
    complexity = 2

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = attention_of(workload)
        if target.arch not in ("sm_90", "sm_90a"):
            return Refusal("target.arch", f"wgmma and TMA need sm_90a, the device is {target.arch}", ("sm_90a",))
        if w.pass_ != "backward":
            return Refusal("pass", f"this sketch is the backward pass, got {w.pass_}", ("backward",))
        if w.dtype not in HALF_TYPES:
            return Refusal("dtype", f"16-bit operands only, got {w.dtype}", HALF_TYPES)
        if w.head_dim not in HEAD_DIMS:
            return Refusal("head_dim", f"no backward tile for {w.head_dim} yet", tuple(map(str, HEAD_DIMS)))
        if w.head_dim_v != w.head_dim:
            return Refusal("head_dim_v", f"must be head_dim ({w.head_dim}), got {w.head_dim_v}", (str(w.head_dim),))
        return _refuse_variants(w)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("consumers", (1, 2), "warpgroups that multiply, 64 keys each (block_kv)"),
            Knob("q_stages", (1, 2, 3), "query tiles in the ring"),
            Knob("do_stages", (1, 2, 3), "tiles of dO in the ring"),
            Knob("ds_buffers", (1, 2), "buffers of dS: with two, warpgroups meet once a tile"),
            Knob(
                "order",
                ("heads", "keys"),
                "what is fastest in launch order: heads (long key tiles first), or key tiles",
            ),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w = attention_of(workload)
        c = tile_of(w, knobs)
        if c.dq_rows > c.consumers or c.dq_columns % 32:
            return _DQ_SHARE
        if c.accumulators > c.accumulator_room:
            return _ACCUMULATORS
        if c.shared_bytes() > min(c.shared_room, target.shared_bytes or c.shared_room):
            return _SHARED
        rows = w.batch * w.heads_q * round_up(w.seq_q, c.block_q)
        return _INDEX if rows * w.head_dim > INDEX_MAX else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        """Registers: of a thread at launch, before warpgroups exchange them."""
        w = attention_of(workload)
        c = tile_of(w, knobs)
        rows = w.batch * w.heads_q * round_up(w.seq_q, c.block_q)
        return Resources(c.entry_registers, c.shared_bytes(), c.threads, rows * 4 * (w.head_dim + 2))

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        """Memory: every operand once, dQ's sums written and read. L2: Q, dO and dQ's sums once for each key tile."""
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        sums = 4.0 * w.batch * w.heads_q * w.seq_q * w.head_dim
        walked = query_tiles(w, c) * (2.0 * c.q_bytes + 4.0 * c.block_q * c.head_dim)
        return Traffic(memory_bytes=w.min_bytes() + 2.0 * sums, l2_bytes=walked + w.min_bytes())

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        w, c = attention_of(workload), tile_of(attention_of(workload), knobs)
        blocks = ceildiv(w.seq_kv, c.block_kv) * w.batch * w.heads_kv
        waves = blocks / target.cores
        steps = query_tiles(w, c)
        seen = w.batch * w.heads_q * w.visible_pairs()
        return {
            "tile.m": float(c.block_q),
            "tile.n": float(c.block_kv),
            "tile.waste": 1.0 - seen / (steps * c.block_q * c.block_kv),
            "gpu.waves": waves,
            "gpu.wave_efficiency": waves / math.ceil(waves),
            "gpu.busy_share": min(1.0, waves),
            "gpu.bytes_in_flight": float((c.q_stages + c.do_stages) * c.q_bytes),
            "gpu.accumulators": float(c.accumulators),
            "gpu.log_k_steps": math.log2(steps / blocks),
            "attention.heads_first": float(c.heads_first),
        }

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """Key tiles fastest was the faster order on an H200 (a head's Q, dO and dQ then stay in L2), but where turns at
        dQ are waited for under a causal mask."""
        w = attention_of(workload)
        orders = ("heads", "keys") if w.causal and w.deterministic else ("keys", "heads")
        chosen: list[Knobs] = []
        for order in orders:
            for consumers, stages in ((2, 2), (1, 2), (2, 3)):
                knobs: Knobs = {
                    "consumers": consumers, "q_stages": stages, "do_stages": stages, "ds_buffers": 2, "order": order,
                }  # fmt: skip
                if self.violated(w, target, knobs) is None:
                    chosen.append(knobs)
        return tuple(chosen)


def _refuse_variants(w: AttentionWorkload) -> Refusal | None:
    for name, width in (("window_left", w.window_left), ("window_right", w.window_right)):
        if width != UNLIMITED:
            return Refusal(name, "windows have no backward sketch yet", (str(UNLIMITED),))
    if w.softcap:
        return Refusal("softcap", "has no backward sketch yet", ("0",))
    if w.kv_layout != "dense":
        return Refusal("kv_layout", f"{w.kv_layout} has no backward sketch yet", ("dense",))
    return None


_TILES_COUNTED = 4096  # more key tiles than this are extrapolated: features are made thousands of times a round


def query_tiles(w: AttentionWorkload, c: BackwardTile) -> float:
    """Query tiles that all blocks together walk over."""
    q_tiles, kv_tiles = ceildiv(w.seq_q, c.block_q), ceildiv(w.seq_kv, c.block_kv)
    heads = w.batch * w.heads_q
    if not w.causal:
        return float(heads * q_tiles * kv_tiles)
    shift, counted = w.seq_kv - w.seq_q, min(kv_tiles, _TILES_COUNTED)
    walked = sum(q_tiles - max(i * c.block_kv - shift, 0) // c.block_q for i in range(counted))
    return float(heads * walked * kv_tiles / counted)


def tile_of(w: AttentionWorkload, knobs: Knobs) -> BackwardTile:
    return BackwardTile(
        head_dim=w.head_dim,
        dtype=w.dtype,
        causal=w.causal,
        scale=w.softmax_scale,
        layout=w.layout,
        deterministic=w.deterministic,
        block_q=BLOCK_Q,
        consumers=int(knobs["consumers"]),
        q_stages=int(knobs["q_stages"]),
        do_stages=int(knobs["do_stages"]),
        ds_buffers=int(knobs["ds_buffers"]),
        heads_first=knobs["order"] == "heads",
    )


def plan(workload: Workload, target: Target, knobs: Knobs) -> tuple[BackwardTile, Json]:
    """The tile and the launch description of a choice."""
    c = tile_of(attention_of(workload), knobs)
    return c, c.launch()


SKETCH = CudaAttentionBwd()
