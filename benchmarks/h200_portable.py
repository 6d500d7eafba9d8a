"""What the sketches for every card from sm_80 on are raced on: layouts for checking, then sizes for timing.

The tensor-core sketch runs on bfloat16 and float16, the other on float32 (torch without tf32). On a Hopper card both
are measured only to know what they cost there: their own cards are A100, L40S, RTX 40 and the like.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import h200_shapes
from benchmarks.h200_candidates import H200
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.registry import get_sketch

# block_m, block_n, block_k, warps_m, warps_n, stages, blocks_per_sm
_TENSOR = (
    (128, 128, 32, 2, 2, 4, 1),
    (128, 128, 64, 2, 2, 3, 1),
    (128, 128, 64, 2, 2, 4, 1),
    (128, 128, 32, 2, 4, 4, 2),
    (128, 128, 64, 2, 4, 3, 2),
    (128, 256, 32, 2, 4, 4, 1),
    (128, 256, 64, 2, 4, 3, 1),
    (256, 128, 32, 4, 2, 4, 1),
    (256, 128, 64, 4, 2, 3, 1),
    (64, 128, 64, 2, 2, 4, 2),
    (64, 256, 64, 1, 4, 4, 1),
    (64, 64, 64, 2, 2, 5, 2),
    (32, 64, 64, 2, 2, 6, 2),
    (32, 128, 64, 1, 4, 5, 2),
    (16, 64, 64, 1, 4, 8, 2),
    (16, 128, 64, 1, 4, 6, 2),
)
# block_m, block_n, block_k, thread_m, thread_n, stages, fragment_sets, blocks_per_sm
_SIMT = (
    (128, 128, 16, 8, 8, 4, 2, 1),
    (128, 128, 16, 8, 8, 4, 1, 1),
    (128, 128, 8, 8, 8, 4, 2, 1),
    (128, 128, 8, 8, 8, 5, 1, 1),
    (128, 128, 4, 8, 8, 6, 1, 2),
    (128, 256, 8, 16, 8, 4, 1, 1),
    (128, 256, 8, 8, 8, 4, 1, 1),
    (256, 128, 8, 8, 16, 4, 1, 1),
    (128, 64, 8, 8, 8, 6, 1, 3),
    (64, 128, 16, 8, 8, 4, 1, 2),
    (64, 64, 8, 8, 4, 6, 2, 3),
    (32, 64, 16, 4, 4, 4, 2, 3),
)
_TIMED = ((16, 6144, 4096), (64, 4096, 4096), (128, 14336, 4096), (512, 1536, 7168), (2048, 4096, 4096))
_TIMED_FLOAT32 = ((1001, 1003, 1000), (64, 4096, 4096), (512, 4096, 4096))


def _tensor(w: GemmWorkload) -> Iterator[Knobs]:
    for block_m, block_n, block_k, warps_m, warps_n, stages, blocks in _TENSOR:
        for store in ("direct", "staged"):
            yield {
                "block_m": block_m, "block_n": block_n, "block_k": block_k, "warps_m": warps_m, "warps_n": warps_n,
                "stages": stages, "blocks_per_sm": blocks, "store": store, "group": 8, "by_n": False,
            }  # fmt: skip


def _simt(w: GemmWorkload) -> Iterator[Knobs]:
    for block_m, block_n, block_k, thread_m, thread_n, stages, sets, blocks in _SIMT:
        yield {
            "block_m": block_m, "block_n": block_n, "block_k": block_k, "thread_m": thread_m, "thread_n": thread_n,
            "stages": stages, "fragment_sets": sets, "blocks_per_sm": blocks, "group": 8, "by_n": False,
        }  # fmt: skip


def candidates(w: GemmWorkload) -> list[Candidate]:
    """All legal ones."""
    name, choices = ("cuda_gemm_simt", _simt) if w.dtype_a == "float32" else ("cuda_gemm_mma", _tensor)
    sketch = get_sketch(name)
    legal = (k for k in choices(w) if sketch.violated(w, H200, k) is None)
    return [Candidate.of(name, sketch.version, k) for k in legal]


def _float32(w: GemmWorkload) -> GemmWorkload:
    return replace(w, dtype_a="float32", dtype_b="float32", dtype_out="float32")


def _sized(m: int, n: int, k: int) -> GemmWorkload:
    return GemmWorkload.from_json({"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True})


@functools.cache
def portable_entries() -> list[tuple[GemmWorkload, list[Candidate]]]:
    """Every (workload, candidates): first the layouts in both types, a few candidates each, then the timed sizes."""
    checked = h200_shapes.layout_workloads()
    checked = [*checked, *map(_float32, checked)]
    layouts = []
    for i, w in enumerate(checked):
        all_of = candidates(w)
        layouts.append((w, list(itertools.islice(all_of, i % 3, None, max(1, len(all_of) // 3)))))
    timed = [*h200_shapes.unaligned_workloads(), *h200_shapes.square_workloads(), *(_sized(*s) for s in _TIMED)]
    timed += map(_float32, [*h200_shapes.square_workloads()[:4], *(_sized(*s) for s in _TIMED_FLOAT32)])
    return layouts + [(w, candidates(w)) for w in timed]


def layouts_checked() -> int:
    """How many of the entries are there to be checked alone."""
    return 2 * len(h200_shapes.layout_workloads())
