"""The prebuilt candidates of the H200 decode race, its shapes, and the cases that every kind of kernel is checked on.

Batch, heads and lengths are run-time extents, dealing and dependent launch only change the launch: a few dozen cubins
serve all shapes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.knob import Knobs
from search_space.sketches.cuda_attention_decode.space import SKETCH, most_stages, tile_of

# batch, heads_q, heads_kv, seq_kv, head_dim
PEER_TABLE = (
    (1, 32, 8, 8192, 128), (8, 32, 8, 8192, 128), (32, 32, 8, 4096, 128), (64, 32, 8, 2048, 128),
    (128, 32, 8, 1024, 128), (1, 64, 8, 65536, 128), (16, 64, 8, 16384, 128), (64, 64, 8, 8192, 128),
    (8, 16, 16, 8192, 64), (8, 16, 8, 8192, 256),
)  # fmt: skip
_KEYS_MOST = 1 << 19  # batch x keys: 2 GiB of K and V with 8 heads of 128

# warps, warp_keys, blocks_per_sm, q_in
Shape = tuple[int, int, int, str]
_SHAPES: Mapping[int, tuple[Shape, ...]] = {
    64: (
        (4, 16, 1, "registers"), (4, 32, 1, "registers"), (8, 16, 1, "registers"), (4, 32, 2, "registers"),
    ),
    128: (
        (4, 16, 1, "registers"), (4, 32, 1, "registers"), (4, 16, 2, "registers"), (2, 32, 1, "registers"),
    ),
    256: ((2, 32, 1, "shared"), (2, 16, 2, "shared"), (2, 16, 1, "shared")),
}  # fmt: skip
# waves, schedule, dependent
Launch = tuple[int, str, bool]
_LAUNCHES: tuple[Launch, ...] = (
    (1, "static", True), (1, "static", False), (1, "dynamic", True), (4, "dynamic", True), (8, "dynamic", True),
)  # fmt: skip


def _workload(batch: int, heads_q: int, heads_kv: int, seq_kv: int, head_dim: int) -> AttentionWorkload:
    return AttentionWorkload.from_json({
        "batch": batch, "heads_q": heads_q, "heads_kv": heads_kv, "seq_q": 1, "seq_kv": seq_kv, "head_dim": head_dim,
        "dtype": "bf16", "layout": "bshd",
    })  # fmt: skip


def grid_workloads() -> list[AttentionWorkload]:
    """Batch 1 to 128, 4 and 8 query heads a KV head, 1k to 64k keys, as far as 2 GiB go; then the other head dims."""
    grid = [
        (batch, heads, 8, keys, 128)
        for heads in (32, 64) for batch in (1, 8, 32, 128) for keys in (1024, 4096, 16384, 65536)
        if batch * keys <= _KEYS_MOST
    ]  # fmt: skip
    shapes = dict.fromkeys((*PEER_TABLE, *grid, (1, 16, 16, 8192, 64), (32, 32, 8, 4096, 64), (1, 16, 8, 8192, 256)))
    return [_workload(*shape) for shape in shapes]


def quick_workloads() -> list[AttentionWorkload]:
    """Eight shapes of different kinds, for a first look."""
    chosen = [PEER_TABLE[i] for i in (0, 1, 3, 5, 6, 8, 9)]
    return [_workload(*shape) for shape in ((1, 32, 8, 1024, 128), *chosen)]


def kernel_key(w: AttentionWorkload, candidate: Candidate) -> str:
    """Hash of what the source depends on: the sketch, its version and the tile; never an extent, nor the layout."""
    tile = replace(tile_of(w, candidate.knobs), layout="")
    return hashlib.sha256(f"{candidate.sketch} {candidate.version} {tile}".encode()).hexdigest()[:16]


def _knobs(shape: Shape, launch: Launch, row_tiles: int = 1) -> Knobs:
    (warps, warp_keys, blocks, q_in), (waves, schedule, dependent) = shape, launch
    return {
        "row_tiles": row_tiles, "warps": warps, "warp_keys": warp_keys, "stages": 2, "q_in": q_in,
        "blocks_per_sm": blocks, "waves": waves, "schedule": schedule, "dependent": dependent,
    }  # fmt: skip


def candidates(w: AttentionWorkload) -> list[Candidate]:
    """All prebuilt candidates of a shape: the ring as deep as it can be."""
    out: list[Candidate] = []
    for shape in _SHAPES[w.head_dim]:
        for launch in _LAUNCHES:
            knobs = most_stages(w, H200, _knobs(shape, launch))
            if knobs is not None:
                out.append(Candidate.of(SKETCH.name, SKETCH.version, knobs))
    return out


def race_entries(quick: bool = False) -> list[tuple[AttentionWorkload, list[Candidate]]]:
    return [(w, candidates(w)) for w in (quick_workloads() if quick else grid_workloads())]


@dataclass(frozen=True)
class Check:
    """A kernel (what is compiled in) and the extents it is run on: batch, heads_q, heads_kv, seq_q, seq_kv, layout."""

    name: str
    fixed: Mapping[str, object]
    shape: Shape
    row_tiles: int
    stages: int
    extents: tuple[tuple[int, int, int, int, int, str], ...]

    def cases(self) -> Iterator[tuple[AttentionWorkload, Candidate]]:
        for index, (batch, heads_q, heads_kv, seq_q, seq_kv, layout) in enumerate(self.extents):
            w = AttentionWorkload.from_json({
                "batch": batch, "heads_q": heads_q, "heads_kv": heads_kv, "seq_q": seq_q, "seq_kv": seq_kv,
                "layout": layout, **self.fixed,
            })  # fmt: skip
            for waves, schedule in ((1, "static"), (1, "dynamic"), (3, "static"), (8, "dynamic"), (32, "dynamic")):
                knobs = _knobs(self.shape, (waves, schedule, index % 2 == 0), self.row_tiles)
                knobs["stages"] = self.stages
                if SKETCH.violated(w, H200, knobs) is None:
                    yield w, Candidate.of(SKETCH.name, SKETCH.version, knobs)


# Ragged, tiny, more units than blocks, one unit for all blocks, group sizes that do not divide 16, both layouts.
_ONE = (
    (1, 32, 8, 1, 1, "bshd"), (2, 8, 2, 1, 7, "bhsd"), (3, 12, 4, 1, 63, "bshd"), (2, 16, 16, 1, 65, "bhsd"),
    (1, 8, 1, 1, 20000, "bshd"), (18, 32, 8, 1, 333, "bshd"), (5, 35, 5, 1, 1025, "bhsd"), (1, 16, 1, 1, 4097, "bshd"),
    (36, 16, 4, 1, 640, "bhsd"),
)  # fmt: skip
_FEW = (
    (1, 4, 4, 2, 5, "bshd"), (2, 3, 3, 5, 3, "bhsd"), (2, 8, 2, 4, 700, "bshd"), (1, 2, 1, 8, 5000, "bhsd"),
    (33, 10, 5, 7, 129, "bshd"), (2, 4, 4, 16, 1000, "bhsd"), (1, 5, 1, 3, 2, "bshd"),
)  # fmt: skip
_MANY = (
    (2, 8, 1, 16, 900, "bshd"),
    (1, 16, 2, 13, 3001, "bhsd"),
    (20, 4, 2, 16, 10, "bshd"),
    (1, 30, 2, 8, 77, "bhsd"),
)
_PLAIN: Shape = (4, 16, 1, "registers")


def checks() -> list[Check]:
    """Every head dim, mask, type and way of sharing work, each on ragged extents."""
    bf16, half = {"dtype": "bf16", "lse": True}, {"dtype": "fp16", "lse": True}
    causal = {**bf16, "causal": True}
    return [
        Check("d64", {"head_dim": 64, **bf16}, _PLAIN, 1, 4, _ONE),
        Check("d128", {"head_dim": 128, **bf16}, _PLAIN, 1, 4, _ONE),
        Check("d256", {"head_dim": 256, **bf16}, (4, 16, 1, "shared"), 1, 2, _ONE),
        Check("d128 fp16 no lse", {"head_dim": 128, "dtype": "fp16"}, (8, 16, 1, "registers"), 1, 2, _ONE),
        Check("d80", {"head_dim": 80, **half}, (2, 32, 2, "registers"), 1, 3, _ONE),
        Check("d96", {"head_dim": 96, **bf16}, (8, 16, 1, "shared"), 1, 2, _ONE),
        Check("d40", {"head_dim": 40, **half}, (1, 64, 1, "registers"), 1, 5, _ONE),
        Check("d8", {"head_dim": 8, **half}, (4, 32, 2, "registers"), 1, 2, _ONE),
        Check("d192 128", {"head_dim": 192, "head_dim_v": 128, **bf16}, (4, 16, 1, "shared"), 1, 3, _ONE),
        Check("d224", {"head_dim": 224, **half}, (2, 16, 2, "shared"), 1, 2, _ONE),
        Check("d64 of 256", {"head_dim": 64, "head_dim_v": 256, **bf16}, (4, 16, 1, "shared"), 1, 2, _ONE),
        Check("causal", {"head_dim": 128, **causal}, (4, 32, 1, "registers"), 1, 3, _FEW),
        Check("causal 3 a SM", {"head_dim": 64, **causal, "dtype": "fp16"}, (4, 16, 3, "registers"), 1, 2, _FEW),
        Check("causal 8 tiles", {"head_dim": 128, **causal}, (1, 16, 1, "shared"), 8, 5, (*_FEW, *_MANY)),
        Check("causal 4 tiles", {"head_dim": 256, **causal}, (1, 32, 1, "shared"), 4, 2, _FEW),
        Check("causal 2 tiles", {"head_dim": 72, **causal}, (4, 16, 1, "registers"), 2, 4, _FEW),
        Check("window", {"head_dim": 128, **causal, "window_left": 100}, _PLAIN, 1, 4, _FEW),
        Check("window 0", {"head_dim": 64, **causal, "window_left": 0}, (4, 32, 2, "registers"), 1, 2, _FEW),
        Check("window both", {"head_dim": 64, **bf16, "window_left": 3, "window_right": 2}, _PLAIN, 1, 4, _FEW),
        Check("softcap", {"head_dim": 128, **causal, "softcap": 5.0, "scale": 0.5}, _PLAIN, 1, 4, _FEW),
        Check("softcap 50", {"head_dim": 256, **half, "softcap": 50.0}, (4, 16, 1, "shared"), 1, 2, _ONE),
        Check("scale", {"head_dim": 64, **bf16, "scale": 2.0}, (8, 32, 1, "registers"), 1, 2, _ONE),
        Check("split in 3", {"head_dim": 128, **bf16}, (4, 16, 2, "registers"), 1, 2, _ONE),
    ]


def kernels(quick: bool = False) -> dict[str, tuple[AttentionWorkload, Candidate]]:
    """kernel key -> one (workload, candidate) that has it."""
    out: dict[str, tuple[AttentionWorkload, Candidate]] = {}
    for w, chosen in race_entries(quick):
        for candidate in chosen:
            out.setdefault(kernel_key(w, candidate), (w, candidate))
    for check in checks():
        for w, candidate in check.cases():
            out.setdefault(kernel_key(w, candidate), (w, candidate))
    return out
