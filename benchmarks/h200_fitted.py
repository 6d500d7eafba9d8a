"""Candidates that fit one shape to the card: tiles, splits of k and clusters ranked by a model of one multiprocessor.

For GEMMs with fewer tiles than multiprocessors what counts is how long one multiprocessor is busy: with its wgmmas, or
with moving operands in and out of shared memory. The kernels have run-time extents, so neighbours in the ranking are
shared by many shapes.
"""

import itertools
from collections.abc import Iterator

from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space
from search_space.hopper.limits import ceildiv, resident_clusters
from search_space.knob import Knobs
from search_space.registry import get_sketch
from search_space.sketches.cuda_gemm_splitk import space as splitk
from search_space.target import Target

_TURN_TILES, _SPLIT_TILES, _WHOLE_BEST, _DEEP_BEST = 6, 8, 10, 2
# cluster_m, cluster_n
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
_START_SECS = 3e-6
_ROWS = ((64, 1), (128, 2), (128, 1), (192, 1), (256, 2))  # block_m, consumers
# (rows, block_k, consumers, split, blocks_per_sm) of the skinny kernel: more rows in flight, longer reads of each row.
_FEW_ROWS = (
    (128, 64, 1, 1, 2),
    (128, 128, 1, 1, 1),
    (128, 128, 1, 2, 1),
    (128, 64, 1, 2, 1),
    (256, 64, 2, 1, 1),
    (256, 64, 2, 2, 1),
    (64, 256, 1, 1, 1),
    (64, 256, 1, 2, 1),
    (64, 64, 1, 1, 2),
    (64, 64, 1, 2, 2),
    (192, 64, 1, 1, 1),
)
_MANY_ROWS = (
    (128, 64, 1, 2, 1),
    (128, 64, 1, 4, 1),
    (128, 64, 2, 2, 1),
    (128, 64, 2, 4, 1),
    (64, 64, 1, 2, 1),
    (256, 64, 2, 4, 1),
)


def choices(w: GemmWorkload, target: Target) -> Iterator[tuple[str, Knobs]]:
    """(sketch, knobs with `stages` still open), best predicted first within each sketch."""
    if w.m <= 16:
        yield from _skinny(w, _FEW_ROWS)
        return
    yield from _split(w, target)
    yield from _whole(w, target)
    if w.m <= 128:
        yield from _skinny(w, _MANY_ROWS)


def _skinny(w: GemmWorkload, rows_of: tuple[tuple[int, int, int, int, int], ...]) -> Iterator[tuple[str, Knobs]]:
    pad = next(p for p in (8, 16, 32, 64, 128) if p >= w.m)
    for (rows, block_k, consumers, split, blocks), buffers in itertools.product(rows_of, (1, 2)):
        yield "cuda_gemm_skinny", {
            "pad_m": pad, "rows": rows, "block_k": block_k, "stages": 2, "consumers": consumers, "split": split,
            "share": 1, "blocks_per_sm": blocks, "red_buffers": buffers, "dependent": False,
        }  # fmt: skip


def _split(w: GemmWorkload, target: Target) -> Iterator[tuple[str, Knobs]]:
    """Turns within a block first, with every way to share operands in a cluster; then splits without turns."""
    if ceildiv(w.m, 128) * ceildiv(w.n, 128) > 2 * target.cores:
        return  # tiles enough without
    for turns, rows, splits, count, clusters in (
        (2, ((64, 2), (128, 2)), (1, 2, 4, 8), _TURN_TILES, _CLUSTERS),
        (1, _ROWS, (2, 3, 4, 6, 8), _SPLIT_TILES, _CLUSTERS[:2]),
    ):
        ranked: list[tuple[float, Knobs]] = []
        for (block_m, consumers), block_n, split in itertools.product(rows, range(16, 257, 16), splits):
            staged = w.n % 8 == 0 and block_n % (16 * split * turns) == 0
            knobs: Knobs = {
                "block_m": block_m, "block_n": block_n, "block_k": 64, "stages": 2, "consumers": consumers,
                "split": split, "turns": turns, "cluster_m": 1, "cluster_n": 1, "store": "tma" if staged else "direct",
                "group": 8, "by_n": False, "dependent": False,
            }  # fmt: skip
            ranked.append((splitk.predicted_secs(w, target, splitk.split_of(w, knobs)), knobs))
        best = _best("cuda_gemm_splitk", w, target, ranked, count)
        for (cluster_m, cluster_n), knobs in itertools.product(clusters, best):
            yield "cuda_gemm_splitk", {**knobs, "cluster_m": cluster_m, "cluster_n": cluster_n}
        for knobs in best[:_DEEP_BEST]:
            yield "cuda_gemm_splitk", {**knobs, "block_k": 128}


def _whole(w: GemmWorkload, target: Target) -> Iterator[tuple[str, Knobs]]:
    ranked: list[tuple[float, Knobs]] = []
    grid = itertools.product(_ROWS, range(16, 257, 16), ((1, 1), (2, 1), (1, 2)))
    for (block_m, consumers), block_n, (cluster_m, cluster_n) in grid:
        knobs: Knobs = {
            "block_m": block_m, "block_n": block_n, "block_k": 64, "stages": 2, "consumers": consumers,
            "schedule": "cooperative", "cluster_m": cluster_m, "cluster_n": cluster_n,
            "store": "rows" if w.n % 8 else "tma", "group": 8, "by_n": False, "persistent": True, "dependent": False,
        }  # fmt: skip
        ranked.append((_busy_secs(w, target, knobs), knobs))
    for rank, knobs in enumerate(_best("cuda_gemm_ws", w, target, ranked, _WHOLE_BEST)):
        yield "cuda_gemm_ws", knobs
        if rank < _DEEP_BEST:
            yield "cuda_gemm_ws", {**knobs, "block_k": 128}
            yield "cuda_gemm_ws", {**knobs, "schedule": "pingpong"}


def _best(name: str, w: GemmWorkload, target: Target, ranked: list[tuple[float, Knobs]], count: int) -> list[Knobs]:
    """The first `count` legal ones by prediction."""
    sketch = get_sketch(name)
    if sketch.refusal(w, target) is not None:
        return []
    ranked.sort(key=lambda pair: pair[0])
    legal = (k for _, k in ranked if gemm_space.most_stages(sketch, w, target, k) is not None)
    return list(itertools.islice(legal, count))


def _busy_secs(w: GemmWorkload, target: Target, knobs: Knobs) -> float:
    """`splitk.predicted_secs` for tiles that one block computes."""
    c = gemm_space.tile_of(w, knobs)
    waves = ceildiv(gemm_space.tiles_of(w, c) // c.cluster, resident_clusters(c.cluster, target.cores))
    stored = c.block_m * c.block_n * 2 / splitk.EXCHANGE_BYTES_PER_CYCLE
    busy = waves * (w.k * splitk.cycles_of_k(c) + stored) / splitk.CLOCK_HZ
    return splitk.overlapped(busy, w.footprint_bytes() / splitk.MEMORY_BYTES_PER_S) + _START_SECS
