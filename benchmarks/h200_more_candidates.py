"""The prebuilt candidates of the second H200 GEMM race: GEMV, float8, grouped GEMM.

Kernels take their extents at run time, so that a few cubins serve all shapes of a suite.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.h200_candidates import H200
from benchmarks.h200_candidates import PLANS as FIRST_PLANS
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.hopper import gemm_space, kmajor_space
from search_space.knob import Knobs
from search_space.registry import get_sketch
from search_space.sketches.cuda_gemm_fp8 import space as fp8
from search_space.sketches.cuda_gemm_fp8_skinny import space as fp8_skinny
from search_space.sketches.cuda_gemm_gemv import space as gemv
from search_space.sketches.cuda_gemm_grouped import space as grouped

PLANS: Mapping[str, Any] = {**FIRST_PLANS, **{m.SKETCH.name: m.plan for m in (gemv, fp8, fp8_skinny, grouped)}}
_DECODE = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (3584, 3584), (8192, 8192), (57344, 8192))
_FP8_LARGE = (
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 2048), (4096, 24576, 1536), (4096, 2112, 7168),
    (128, 7168, 2048), (128, 4096, 7168), (512, 7168, 2048),
)  # fmt: skip
_FP8_SMALL = ((16, 4096, 7168), (16, 7168, 2048), (16, 24576, 1536), (1, 4096, 7168), (8, 2112, 7168), (64, 4096, 7168))
# groups, m, n, k: the four shapes that torch._grouped_mm was measured on
_GROUPED = ((4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (32, 256, 4096, 7168), (256, 16, 4096, 7168))


def kernel_key(workload: GemmWorkload, candidate: Candidate) -> str:
    """Hash of what the source depends on: the sketch, its version and the tile, never a run-time extent."""
    tile, _ = PLANS[candidate.sketch](workload, H200, candidate.knobs)
    return hashlib.sha256(f"{candidate.sketch} {candidate.version} {tile}".encode()).hexdigest()[:16]


def workloads() -> list[tuple[str, GemmWorkload]]:
    """(suite, workload). "checks" are small, ragged and only for right or wrong."""
    found = [("checks", w) for w in check_workloads()]
    make = GemmWorkload.from_json
    for m, (n, k) in itertools.product((1, 2, 4), _DECODE):
        found.append(("gemv", make({"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True, "b_constant": True})))
    for m, (n, k) in itertools.product((1, 4), ((4096, 4096), (28672, 4096))):
        found.append(("gemv", make({"m": m, "n": n, "k": k, "dtype": "bf16", "b_constant": True})))
    for m, n, k in ((1, 4095, 4095), (4, 4095, 4095), (2, 11008, 4097)):
        found.append(("gemv", make({"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True, "b_constant": True})))
    for scales in ("tensor", "block"):
        for m, n, k in (*_FP8_LARGE, *_FP8_SMALL):
            data = {"m": m, "n": n, "k": k, "dtype": "fp8", "trans_b": True, "scales": scales, "b_constant": True}
            found.append((f"fp8_{scales}", make(data)))
    for groups, m, n, k in _GROUPED:
        data = {"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True, "groups": groups, "grouping": "contiguous"}
        found.append(("grouped", make(data)))
    return found


def check_workloads() -> list[GemmWorkload]:
    base = GemmWorkload.from_json({"m": 3, "n": 328, "k": 456, "dtype": "bf16"})
    half = {"dtype_a": "float16", "dtype_b": "float16", "dtype_out": "float16"}
    out = [
        replace(base, m=m, trans_b=tb, n=n, k=k)
        for m in (1, 4)
        for tb in (False, True)
        for n, k in ((328, 456), (331, 453))
    ]
    out += [replace(base, trans_b=tb, batch=3, epilogue="bias+gelu", n=330, k=454, **half) for tb in (False, True)]
    out += [replace(base, m=1, trans_a=True, trans_b=True, n=1, k=1), replace(base, m=2, n=5, k=3)]
    fp8 = GemmWorkload.from_json({"m": 200, "n": 328, "k": 400, "dtype": "fp8", "trans_b": True})
    for scales in ("none", "tensor", "block"):
        out.append(replace(fp8, scales=scales))
        out.append(replace(fp8, scales=scales, m=13, epilogue="bias+silu"))
    out += [replace(fp8, scales="block", n=331, m=77), replace(fp8, scales="tensor", dtype_out="float16", k=4096 + 16)]
    moe = GemmWorkload.from_json(
        {"m": 150, "n": 328, "k": 456, "dtype": "bf16", "trans_b": True, "groups": 7, "grouping": "contiguous"}
    )
    out += [replace(moe, grouping=g, epilogue=e) for g in ("contiguous", "masked") for e in ("none", "bias+relu")]
    out += [replace(moe, m=5, groups=40, grouping="masked", n=331), replace(moe, groups=33, m=16, **half)]
    return out


def candidates(suite: str, w: GemmWorkload) -> list[Candidate]:
    """All legal prebuilt candidates of a shape, none twice."""
    out: dict[str, Candidate] = {}
    for name, knobs in _choices(w):
        sketch = get_sketch(name)
        if sketch.refusal(w, H200) is not None:
            continue
        has_stages = any(k.name == "stages" for k in sketch.knobs(w, H200))
        filled = gemm_space.most_stages(sketch, w, H200, knobs) if has_stages else knobs
        if filled is not None and sketch.violated(w, H200, filled) is None:
            candidate = Candidate.of(name, sketch.version, filled)
            out[candidate.key] = candidate
    chosen = list(out.values())
    return chosen if suite != "checks" else chosen[:: max(1, len(chosen) // 3)]


def race_entries() -> list[tuple[str, GemmWorkload, list[Candidate]]]:
    return [(suite, w, candidates(suite, w)) for suite, w in workloads()]


def needed() -> dict[str, tuple[GemmWorkload, Candidate]]:
    """kernel key -> one (workload, candidate) that has it: every workload's first candidate, then every second, ..."""
    out: dict[str, tuple[GemmWorkload, Candidate]] = {}
    entries = race_entries()
    for rank in range(max(len(chosen) for _, _, chosen in entries)):
        for _, w, chosen in entries:
            if rank < len(chosen):
                out.setdefault(kernel_key(w, chosen[rank]), (w, chosen[rank]))
    return out


def _choices(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    if w.groups > 1:
        yield from _grouped(w)
    elif w.dtype_a == "float8_e4m3":
        yield from _float8(w)
    else:
        yield from _gemv(w)


# (warps, split, rows, unroll) for B stored [n, k], (warps, lanes, unroll) for [k, n]
_GEMV_ROWS = (
    (4, 4, 2, 4), (8, 8, 4, 2), (4, 1, 2, 4), (8, 8, 1, 4), (4, 4, 1, 8), (8, 4, 2, 4), (2, 2, 4, 4), (16, 16, 2, 2),
    (4, 2, 4, 2), (4, 4, 4, 2), (8, 8, 2, 2), (8, 2, 2, 4),
)  # fmt: skip
_GEMV_COLUMNS = ((16, 4, 8), (16, 8, 8), (32, 4, 4), (8, 8, 8), (16, 16, 8), (32, 8, 4), (8, 4, 16), (32, 4, 8))


def _gemv(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    for dependent in (False, True) if w.b_constant else (False,):
        choices: list[Knobs] = [
            *({"warps": p, "split": s, "rows": r, "unroll": u} for p, s, r, u in (_GEMV_ROWS if w.trans_b else ())),
            *({"warps": p, "lanes": n, "unroll": u} for p, n, u in (() if w.trans_b else _GEMV_COLUMNS)),
        ]
        for knobs in choices:
            yield "cuda_gemm_gemv", {**knobs, "dependent": dependent}
        for name in ("cuda_gemm_skinny", "cuda_gemm_padded"):
            if w.batch == 1 and get_sketch(name).refusal(w, H200) is None:
                for knobs in get_sketch(name).seeds(w, H200)[:4]:
                    yield name, {**knobs, "dependent": dependent} if "dependent" in knobs else knobs


# block_m, block_n, consumers, schedule, cluster_m, cluster_n, slabs
_FLOAT8_LARGE = (
    (128, 256, 2, "cooperative", 2, 1, 1), (128, 256, 2, "cooperative", 1, 2, 1), (256, 128, 2, "cooperative", 2, 1, 1),
    (128, 128, 2, "cooperative", 2, 1, 1), (64, 256, 2, "pingpong", 2, 1, 1), (128, 192, 2, "cooperative", 2, 1, 1),
    (128, 128, 2, "pingpong", 2, 1, 1), (128, 256, 2, "cooperative", 1, 1, 1), (128, 128, 2, "cooperative", 1, 1, 1),
    (64, 128, 2, "pingpong", 2, 1, 1), (128, 128, 2, "cooperative", 1, 2, 1), (128, 128, 2, "pingpong", 1, 1, 1),
    (128, 224, 2, "cooperative", 2, 1, 1), (64, 128, 2, "pingpong", 1, 1, 1), (128, 128, 2, "cooperative", 2, 1, 2),
    (128, 64, 2, "cooperative", 1, 1, 1), (128, 112, 2, "cooperative", 1, 1, 1), (64, 64, 1, "cooperative", 1, 1, 2),
    (128, 176, 2, "cooperative", 2, 1, 1), (64, 112, 1, "cooperative", 1, 1, 2), (64, 128, 1, "cooperative", 1, 1, 2),
    (128, 96, 2, "cooperative", 1, 1, 1), (128, 208, 2, "cooperative", 2, 1, 1), (64, 128, 1, "cooperative", 2, 1, 1),
)  # fmt: skip
_FLOAT8_SMALL = (
    (64, 64, 1, "cooperative", 1, 1, 1), (64, 32, 1, "cooperative", 1, 1, 2), (64, 128, 1, "cooperative", 1, 1, 1),
    (64, 64, 1, "cooperative", 1, 1, 2),
)  # fmt: skip


def _float8(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    sketch = get_sketch("cuda_gemm_fp8_skinny")
    if sketch.refusal(w, H200) is None:
        for knobs in sketch.seeds(w, H200):
            for dependent in (False, True) if w.b_constant else (False,):
                yield sketch.name, {**knobs, "dependent": dependent}
    for promote in (True,) if w.scales == "block" else (False, True):
        for bm, bn, consumers, schedule, cm, cn, slabs in _FLOAT8_LARGE if w.m >= 64 else _FLOAT8_SMALL:
            for overlap in (True, False) if promote else (False,):
                change = {"cluster_m": cm, "cluster_n": cn, "schedule": schedule, "slabs": slabs, "overlap": overlap}
                plain = kmajor_space.plain_knobs(w, bm, bn, consumers, **change, promote=promote)
                for group in (8, 16) if w.m > 512 else (8,):
                    yield "cuda_gemm_fp8", {**plain, "group": group}


# block_m, block_n, slabs, consumers, schedule, cluster_m, cluster_n
_GROUPED_LARGE = (
    (128, 256, 1, 2, "cooperative", 2, 1), (128, 256, 1, 2, "cooperative", 1, 2), (256, 128, 1, 2, "cooperative", 2, 1),
    (128, 256, 1, 2, "cooperative", 1, 1), (128, 192, 1, 2, "cooperative", 2, 1), (128, 128, 1, 2, "pingpong", 2, 1),
    (128, 128, 1, 2, "pingpong", 1, 1), (64, 256, 1, 2, "pingpong", 2, 1), (256, 128, 1, 2, "cooperative", 1, 1),
)  # fmt: skip
_GROUPED_SMALL = (
    (64, 128, 2, 1, "cooperative", 1, 1), (64, 256, 1, 1, "cooperative", 1, 1), (64, 64, 2, 1, "cooperative", 1, 1),
    (64, 128, 2, 1, "cooperative", 1, 2), (64, 192, 1, 1, "cooperative", 1, 1), (64, 256, 1, 2, "pingpong", 1, 1),
    (64, 128, 2, 2, "pingpong", 1, 1),
)  # fmt: skip


def _grouped(w: GemmWorkload) -> Iterator[tuple[str, Knobs]]:
    for bm, bn, slabs, consumers, schedule, cm, cn in _GROUPED_LARGE if w.m > 64 else _GROUPED_SMALL:
        for group, by_n in ((8, False), (16, False), (8, True)) if w.m > 256 else ((8, False),):
            change = {"cluster_m": cm, "cluster_n": cn, "schedule": schedule, "group": group, "by_n": by_n}
            yield "cuda_gemm_grouped", kmajor_space.plain_knobs(w, bm, bn, consumers, slabs=slabs, **change)
