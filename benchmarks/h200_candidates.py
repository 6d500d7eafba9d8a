"""The prebuilt candidates of the H200 GEMM race: which sketches and knobs are tried on which shape.

Kernels take every extent at run time, so a few hundred cubins serve all shapes; knobs that only change the launch
(raster, dealing) cost no compilation.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import h200_fitted, h200_shapes
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space
from search_space.knob import Knobs
from search_space.registry import get_sketch
from search_space.sketches.cuda_gemm_mma import space as mma
from search_space.sketches.cuda_gemm_padded import space as padded
from search_space.sketches.cuda_gemm_simt import space as simt
from search_space.sketches.cuda_gemm_skinny import space as skinny
from search_space.sketches.cuda_gemm_splitk import space as splitk
from search_space.sketches.cuda_gemm_streamk import space as streamk
from search_space.sketches.cuda_gemm_ws import space as ws
from search_space.target import Target

PLANS: Mapping[str, Any] = {m.SKETCH.name: m.plan for m in (ws, streamk, splitk, skinny, padded, mma, simt)}
H200 = Target(
    kind="cuda",
    arch="sm_90a",
    model="NVIDIA H200",
    cores=132,
    l2_bytes=60 << 20,
    memory_bytes=139 << 30,
    shared_bytes=227 * 1024,
)

# rows, block_k, consumers, split, share, blocks_per_sm, red_buffers
_SKINNY = (
    (64, 128, 1, 2, 1, 1, 1),
    (64, 128, 1, 2, 1, 1, 2),
    (64, 128, 1, 2, 1, 2, 1),
    (64, 128, 1, 2, 1, 2, 2),
    (64, 128, 1, 1, 1, 1, 1),
    (64, 128, 1, 1, 1, 2, 1),
    (64, 64, 1, 4, 1, 1, 1),
    (64, 64, 1, 8, 1, 1, 1),
    (64, 64, 1, 1, 2, 1, 1),
    (128, 64, 1, 1, 1, 1, 1),
)
# block_m, block_n, block_k, consumers, cluster_m, cluster_n of stream-K, by m
_STREAM = {
    64: (
        (64, 64, 128, 1, 1, 1),
        (64, 128, 64, 1, 1, 1),
        (64, 128, 128, 1, 1, 1),
        (64, 128, 64, 1, 1, 2),
        (64, 128, 128, 1, 1, 2),
        (64, 192, 64, 1, 1, 1),
        (64, 256, 64, 1, 1, 1),
        (64, 256, 64, 1, 1, 2),
    ),
    128: (
        (128, 64, 128, 2, 1, 1),
        (128, 64, 64, 2, 1, 1),
        (128, 128, 64, 2, 1, 1),
        (128, 128, 128, 2, 1, 1),
        (128, 128, 64, 2, 1, 2),
        (128, 192, 64, 2, 1, 1),
        (128, 256, 64, 2, 1, 1),
        (128, 256, 64, 2, 1, 2),
        (64, 128, 64, 1, 2, 1),
        (64, 256, 64, 1, 2, 1),
    ),
    256: (
        # A cluster that spans all rows reads B once, however far apart in k its neighbours are.
        (256, 128, 64, 2, 2, 1),
        (128, 128, 64, 2, 4, 1),
        (128, 256, 64, 2, 4, 1),
        (64, 32, 128, 1, 1, 1),
        (64, 64, 128, 1, 1, 1),
        (64, 128, 64, 1, 1, 1),
        (128, 128, 64, 2, 2, 1),
        (128, 256, 64, 2, 1, 1),
        (128, 256, 64, 2, 2, 1),
        (128, 256, 64, 2, 1, 2),
        (256, 128, 64, 2, 1, 1),
        (256, 128, 64, 2, 1, 2),
    ),
}
# block_m, block_n, block_k, consumers, schedule, cluster_m, cluster_n of whole tiles, by m
_WHOLE = {
    64: (
        (64, 64, 128, 1, "cooperative", 1, 1),
        (64, 128, 64, 1, "cooperative", 1, 1),
        (64, 32, 128, 1, "cooperative", 1, 1),
    ),
    128: (
        (128, 64, 64, 2, "cooperative", 1, 1),
        (128, 128, 64, 2, "cooperative", 1, 1),
        (128, 32, 128, 2, "cooperative", 1, 1),
        (64, 64, 128, 1, "cooperative", 2, 1),
    ),
    256: (
        (128, 256, 64, 2, "cooperative", 1, 1),
        (128, 256, 64, 2, "cooperative", 2, 1),
        (128, 256, 64, 2, "cooperative", 1, 2),
        (256, 128, 64, 2, "cooperative", 1, 1),
        (256, 128, 64, 2, "cooperative", 2, 1),
        (256, 128, 64, 2, "cooperative", 1, 2),
        (256, 192, 64, 2, "cooperative", 1, 1),
        (128, 192, 64, 2, "cooperative", 2, 1),
        (128, 128, 64, 2, "cooperative", 1, 1),
        (128, 128, 64, 2, "cooperative", 2, 1),
        (128, 128, 64, 2, "pingpong", 1, 1),
        (128, 128, 64, 2, "pingpong", 2, 1),
        (64, 256, 64, 2, "pingpong", 1, 1),
        (64, 256, 64, 2, "pingpong", 2, 1),
        (64, 128, 64, 1, "cooperative", 1, 1),
        (64, 64, 128, 1, "cooperative", 1, 1),
        (128, 64, 128, 2, "cooperative", 1, 1),
    ),
}
_FITTED = 5
_PADDED = (
    (128, 256, 2, 2, 1),
    (128, 192, 2, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 128, 2, 1, 1),
    (64, 128, 1, 1, 1),
)


def candidates(w: GemmWorkload, target: Target = H200) -> list[Candidate]:
    """All legal prebuilt candidates of a shape, none twice."""
    out: dict[str, Candidate] = {}
    fitted = () if gemm_space.unaligned_operands(w) else h200_fitted.choices(w, target)
    for name, knobs in (*fitted, *_choices(w)):
        sketch = get_sketch(name)
        if sketch.refusal(w, target) is not None:
            continue
        filled = gemm_space.most_stages(sketch, w, target, knobs)
        if filled is not None:
            candidate = Candidate.of(name, sketch.version, filled)
            out[candidate.key] = candidate
    return list(out.values())


@functools.cache
def race_entries() -> list[tuple[GemmWorkload, list[Candidate]]]:
    """Every (workload, candidates) of the race. Layouts, types and epilogues are checked on a sample of the
    candidates, another one for each workload."""
    layouts = [(w, _sample(candidates(w), i)) for i, w in enumerate(h200_shapes.layout_workloads())]
    timed = [*h200_shapes.unaligned_workloads(), *h200_shapes.square_workloads(), *h200_shapes.model_workloads()]
    return layouts + [(w, candidates(w)) for w in timed]


def _sample(chosen: list[Candidate], offset: int) -> list[Candidate]:
    """Four or five of them, spread evenly."""
    step = max(1, len(chosen) // 4)
    return chosen[offset % step :: step]


def _choices(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    dependent = (False, True) if w.b_constant and w.m <= 128 else (False,)
    if gemm_space.unaligned_operands(w):
        yield from _padded()
    elif w.m <= 128:
        for early in dependent:
            yield from _skinny(w, early)
            yield from _decode_tiles(64 if w.m <= 64 else 128, w, early)
    else:
        yield from _large(w)
    if not gemm_space.unaligned_operands(w) and w.m > 32:
        yield from _fitted(w, dependent)


def _skinny(w: GemmWorkload, dependent: bool) -> Iterator[tuple[str, Knobs]]:
    pad = next(p for p in (8, 16, 32, 64, 128) if p >= w.m)
    for rows, block_k, consumers, split, share, blocks, buffers in _SKINNY:
        yield "cuda_gemm_skinny", {
            "pad_m": max(pad, 8 * share), "rows": rows, "block_k": block_k, "stages": 2, "consumers": consumers,
            "split": split, "share": share, "blocks_per_sm": blocks, "red_buffers": buffers, "dependent": dependent,
        }  # fmt: skip


def _decode_tiles(m: int, w: GemmWorkload, dependent: bool) -> Iterator[tuple[str, Knobs]]:
    store = "rows" if w.n % 8 else "tma"
    # Below 33 rows most of a 64-row tile is padding: the three narrowest alone.
    for block_m, block_n, block_k, consumers, cm, cn in _STREAM[m][: 3 if w.m <= 32 else None]:
        for dealing in ("even", "split"):
            yield (
                "cuda_gemm_streamk",
                _stream_knobs(block_m, block_n, block_k, consumers, cm, cn, store, dealing, 8, dependent),
            )
    for block_m, block_n, block_k, consumers, schedule, cm, cn in _WHOLE[m] if w.m > 32 else ():
        yield (
            "cuda_gemm_ws",
            _whole_knobs(block_m, block_n, block_k, consumers, schedule, cm, cn, store, 8, False, dependent),
        )


def _large(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    store = "rows" if w.n % 8 else "tma"
    tiles = _STREAM[256] + _STREAM[128] if w.m <= 512 else _STREAM[256][:1] + _STREAM[256][6:]
    for block_m, block_n, block_k, consumers, cm, cn in tiles:
        for dealing in ("even", "hybrid"):
            yield (
                "cuda_gemm_streamk",
                _stream_knobs(block_m, block_n, block_k, consumers, cm, cn, store, dealing, 8, False),
            )
    for block_m, block_n, block_k, consumers, schedule, cm, cn in _WHOLE[256]:
        rasters = [(8, False)] if w.m <= 512 else [(4, False), (8, False), (16, False), (8, True)]
        for group, by_n in rasters:
            yield (
                "cuda_gemm_ws",
                _whole_knobs(block_m, block_n, block_k, consumers, schedule, cm, cn, store, group, by_n, False),
            )


def _fitted(w: GemmWorkload, dependent: tuple[bool, ...]) -> Iterator[tuple[str, Knobs]]:
    """The tiles that the sketch itself would try first, and ping-pong on those that leave room for it."""
    for rank, knobs in enumerate(get_sketch("cuda_gemm_ws").seeds(w, H200)[:_FITTED]):
        for early in dependent:
            yield "cuda_gemm_ws", {**knobs, "dependent": early}
            if w.m <= 512 and rank < 1 and w.n % 8 == 0:
                yield "cuda_gemm_ws", {**knobs, "dependent": early, "store": "direct"}
        if knobs["block_m"] == 128 and w.m > 256:
            yield "cuda_gemm_ws", {**knobs, "schedule": "pingpong"}
        if w.m > 1024:
            yield "cuda_gemm_ws", {**knobs, "by_n": True}


def _padded() -> Iterator[tuple[str, Knobs]]:
    for block_m, block_n, consumers, cm, cn in _PADDED:
        yield "cuda_gemm_padded", {
            "block_m": block_m, "block_n": block_n, "block_k": 64, "stages": 2, "consumers": consumers,
            "schedule": "cooperative", "cluster_m": cm, "cluster_n": cn, "store": "rows", "group": 8,
        }  # fmt: skip


def _stream_knobs(bm: int, bn: int, bk: int, nc: int, cm: int, cn: int, store: str, dealing: str, group: int,
                  dependent: bool) -> Knobs:  # fmt: skip
    return {
        "block_m": bm, "block_n": bn, "block_k": bk, "stages": 2, "consumers": nc, "cluster_m": cm, "cluster_n": cn,
        "store": store, "dealing": dealing, "group": group, "by_n": False, "dependent": dependent,
    }  # fmt: skip


def _whole_knobs(bm: int, bn: int, bk: int, nc: int, schedule: str, cm: int, cn: int, store: str, group: int,
                 by_n: bool, dependent: bool) -> Knobs:  # fmt: skip
    return {
        "block_m": bm, "block_n": bn, "block_k": bk, "stages": 2, "consumers": nc, "schedule": schedule,
        "cluster_m": cm, "cluster_n": cn, "store": store, "group": group, "by_n": by_n, "persistent": True,
        "dependent": dependent,
    }  # fmt: skip
