"""The prebuilt candidates of the H200 attention race, and its shapes.

Batch, heads and lengths are run-time extents and head order and dealing only change the launch, so that fewer than a
hundred cubins serve all shapes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.knob import Knobs
from search_space.sketches.cuda_attention_fwd.space import SKETCH, tile_of

TOKENS, HIDDEN = 16384, 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def grid_workloads() -> list[AttentionWorkload]:
    """FlashAttention's benchmark setting (arXiv:2407.08608, section 4.1) in bfloat16."""
    return [
        AttentionWorkload.from_json({
            "batch": TOKENS // seq, "heads": HIDDEN // dim, "seq": seq, "head_dim": dim, "causal": causal,
            "dtype": "bf16", "layout": "bshd",
        })
        for dim in HEAD_DIMS for causal in (False, True) for seq in LENGTHS
    ]  # fmt: skip


def grouped_workloads() -> list[AttentionWorkload]:
    """Llama-3's prefill: 32 query heads on 8 KV heads."""
    data = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, "causal": True, "dtype": "bf16", "layout": "bshd"}
    return [AttentionWorkload.from_json({**data, "batch": 4, "seq": 2048})]


def suite_of(w: AttentionWorkload) -> str:
    return "fa_paper_grid" if w.heads_q == w.heads_kv else "gqa_prefill"


def kernel_key(w: AttentionWorkload, candidate: Candidate) -> str:
    """Hash of what the source depends on: the sketch, its version and the tile; never an extent, nor the layout."""
    tile = replace(tile_of(w, candidate.knobs), layout="")
    return hashlib.sha256(f"{candidate.sketch} {candidate.version} {tile}".encode()).hexdigest()[:16]


def _knobs(block_kv: int, consumers: int, q_buffers: int, epilogue: str, pv_wait: str, *, pingpong: bool = True,
           overlap: bool = True, lazy: int = 0, rescale: str = "after", dynamic: bool = False, stages: int = 2,
           diagonal: str = "skip") -> Knobs:  # fmt: skip
    return {
        "block_kv": block_kv, "stages": stages, "q_buffers": q_buffers, "consumers": consumers, "overlap": overlap,
        "pingpong": pingpong, "pv_wait": pv_wait, "rescale": rescale, "lazy": lazy, "diagonal": diagonal,
        "epilogue": epilogue, "schedule": "dynamic" if dynamic else "static", "group": 0,
    }  # fmt: skip


def _under(choice: "partial[Knobs]", **more: object) -> Knobs:
    """FlashAttention-3's order: maxima, wait for P V, then powers and rescaling side by side."""
    return choice("max", rescale="under", **more)


def _full_64() -> Iterator[Knobs]:
    three, two = partial(_knobs, 128, 3, 2, "tma"), partial(_knobs, 128, 2, 2, "tma")
    for pv_wait in ("early", "max", "late"):
        yield three(pv_wait)
    yield two("early")
    for choice in (three, two, partial(_knobs, 192, 2, 2, "tma")):
        yield _under(choice)
    yield _under(three, pingpong=False)
    yield three("early", overlap=False, pingpong=False)


def _causal_64() -> Iterator[Knobs]:
    three, two = partial(_knobs, 128, 3, 2, "tma"), partial(_knobs, 128, 2, 2, "tma")
    for choice in (three, two):
        for dynamic in (False, True):
            yield choice("early", dynamic=dynamic)
            yield _under(choice, dynamic=dynamic)
    yield three("max", dynamic=True)
    yield three("early", diagonal="mask")
    for choice in (three, two):
        yield choice("max", dynamic=True, diagonal="half")
        yield _under(choice, dynamic=True, diagonal="half")
    yield two("early", dynamic=True, diagonal="half")
    yield two("early", diagonal="half")


def _full_128() -> Iterator[Knobs]:
    two, three = partial(_knobs, 128, 2, 2, "tma"), partial(_knobs, 80, 3, 2, "tma")
    wide = partial(_knobs, 176, 2, 1, "tma")
    for pv_wait in ("early", "max", "late"):
        yield two(pv_wait)
    yield two("early", overlap=False, pingpong=False)
    yield two("late", lazy=8)
    yield three("early", lazy=8)
    yield three("late", lazy=8)
    for choice in (two, three, wide):
        yield _under(choice)
    yield _under(three, lazy=8)
    yield _under(wide, lazy=8)
    yield _under(two, pingpong=False)


def _causal_128() -> Iterator[Knobs]:
    two, three = partial(_knobs, 128, 2, 2, "tma"), partial(_knobs, 80, 3, 2, "tma")
    for dynamic in (False, True):
        yield two("early", dynamic=dynamic)
        yield two("max", dynamic=dynamic)
        yield _under(two, dynamic=dynamic)
    yield two("late", dynamic=True)
    yield two("early", overlap=False, pingpong=False)
    yield two("early", diagonal="mask")
    yield _under(two, pingpong=False, dynamic=True)
    yield from _half_128()
    yield three("late", lazy=8, dynamic=True)
    yield _under(three, dynamic=True)
    yield _under(three, lazy=8, dynamic=True)


def _half_128() -> Iterator[Knobs]:
    """Half tiles on the diagonal, and other ways to hold Q while the next one loads."""
    two = partial(_knobs, 128, 2, 2, "tma", dynamic=True, diagonal="half")
    direct = partial(_knobs, 128, 2, 2, "direct", dynamic=True, diagonal="half")
    yield two("early")
    yield two("max")
    yield _under(two)
    for choice in (two, direct):
        yield _under(choice, pingpong=False)
    yield _under(partial(_knobs, 128, 2, 2, "tma", diagonal="half"), pingpong=False)
    for epilogue in ("tma", "direct"):
        deep = partial(_knobs, 128, 2, 1, epilogue, stages=3, dynamic=True, diagonal="half")
        yield _under(deep, pingpong=False)
    yield _under(partial(_knobs, 144, 2, 2, "tma", dynamic=True), pingpong=False)
    yield _under(partial(_knobs, 80, 3, 2, "tma", dynamic=True), pingpong=False, lazy=8)


def _full_256() -> Iterator[Knobs]:
    direct = partial(_knobs, 80, 2, 1, "direct")
    for pv_wait in ("early", "max", "late"):
        yield direct(pv_wait, lazy=8)
    yield _under(direct)
    yield _under(direct, lazy=8)
    yield _under(direct, lazy=8, pingpong=False)


def _causal_256() -> Iterator[Knobs]:
    direct, bulk = partial(_knobs, 80, 2, 1, "direct"), partial(_knobs, 80, 2, 1, "tma")
    for dynamic in (False, True):
        yield direct("early", lazy=8, dynamic=dynamic)
        yield direct("late", lazy=8, dynamic=dynamic)
        yield _under(direct, lazy=8, dynamic=dynamic)
    yield _under(direct, dynamic=True)
    yield bulk("late", lazy=8)
    yield bulk("early", lazy=8, diagonal="mask")
    for pv_wait in ("late", "early"):
        yield _knobs(64, 2, 1, "direct", pv_wait, lazy=8, dynamic=True)
    yield _knobs(64, 2, 1, "direct", "late", lazy=8, dynamic=True, diagonal="half")
    yield _knobs(64, 2, 1, "tma", "late", lazy=8, dynamic=True, diagonal="half")
    yield _knobs(64, 2, 1, "direct", "max", lazy=8, dynamic=True, diagonal="half", rescale="under")
    yield bulk("late", lazy=8, dynamic=True)


_CHOICES: Mapping[tuple[int, bool], tuple[Knobs, ...]] = {
    (64, False): tuple(_full_64()), (64, True): tuple(_causal_64()), (128, False): tuple(_full_128()),
    (128, True): tuple(_causal_128()), (256, False): tuple(_full_256()), (256, True): tuple(_causal_256()),
}  # fmt: skip


def candidates(w: AttentionWorkload) -> list[Candidate]:
    """All legal prebuilt candidates of a shape, each with the launches that make sense, none twice."""
    out: dict[str, Candidate] = {}
    heads = w.batch * w.heads_q
    for knobs in _CHOICES[w.head_dim, w.causal]:
        dynamic, fixed = knobs["schedule"] == "dynamic", dict(knobs)
        if not w.causal:
            fixed["diagonal"] = "mask"
        schedules = ("dynamic",) if dynamic else ("static",) if knobs["q_buffers"] == 2 else ("static", "single")
        for schedule in schedules:
            for group in (4, 8, 16, 32, 0) if dynamic else (1, 4, 16) if w.causal else (1, 4):
                if group < heads:
                    choice: Knobs = {**fixed, "schedule": schedule, "group": group}
                    if SKETCH.violated(w, H200, choice) is None:
                        candidate = Candidate.of(SKETCH.name, SKETCH.version, choice)
                        out[candidate.key] = candidate
    return list(out.values())


def race_entries() -> list[tuple[AttentionWorkload, list[Candidate]]]:
    return [(w, candidates(w)) for w in (*grid_workloads(), *grouped_workloads())]


def _small(dim: int, dtype: str, causal: bool, lse: bool, **more: object) -> AttentionWorkload:
    data = {"heads": 2, "seq": 64, "head_dim": dim, "dtype": dtype, "causal": causal, "lse": lse, **more}
    return AttentionWorkload.from_json(data)


def _wider_domain() -> list[tuple[AttentionWorkload, Knobs]]:
    """Head dims that are padded, another dim of V, windows and soft caps: checked, not timed."""
    two = partial(_knobs, 128, 2, 2, "tma", "late", dynamic=True)
    small = partial(_knobs, 64, 2, 1, "direct", "early", dynamic=True)
    mask = {"diagonal": "mask"}
    return [
        (_small(8, "fp16", True, True), two()),
        (_small(40, "bf16", True, True), small()),
        (_small(72, "fp16", False, True), {**two(), **mask}),
        (_small(80, "bf16", True, True), two()),
        (_small(80, "fp16", False, True), {**_knobs(80, 3, 1, "direct", "max", rescale="under", lazy=8), **mask}),
        (_small(96, "bf16", True, True), _knobs(128, 2, 1, "direct", "max", rescale="under", dynamic=True)),
        (_small(192, "bf16", True, True), _knobs(96, 2, 1, "tma", "late", dynamic=True)),
        (_small(192, "bf16", True, True, head_dim_v=128), _knobs(128, 2, 1, "tma", "late", dynamic=True)),
        (_small(192, "fp16", False, True, head_dim_v=128), {**_knobs(112, 2, 1, "direct", "early", lazy=8), **mask}),
        (_small(64, "bf16", True, True, head_dim_v=256), _knobs(64, 2, 2, "direct", "early", lazy=8)),
        (_small(216, "fp16", True, True), _knobs(64, 2, 1, "tma", "early", dynamic=True)),
        (_small(128, "bf16", True, True, window_left=100), two()),
        (_small(128, "bf16", False, True, window_left=37, window_right=20), {**two(), **mask}),
        (_small(64, "fp16", False, True, window_right=5), _knobs(64, 3, 2, "tma", "late")),
        (_small(64, "bf16", False, True, window_left=200), {**two(), **mask}),
        (_small(128, "bf16", True, True, window_left=0), _knobs(64, 3, 2, "tma", "late", dynamic=True)),
        (_small(128, "bf16", True, True, softcap=20.0), two()),
        (_small(256, "bf16", True, True, softcap=50.0, window_left=300), _knobs(80, 2, 1, "direct", "early", lazy=8)),
    ]


def checked_only() -> list[tuple[AttentionWorkload, Candidate]]:
    """Kernels that are checked, not timed: float16, LSE, one consumer, shallow and deep rings."""
    chosen = [
        (64, "fp16", True, _knobs(128, 3, 2, "tma", "late", dynamic=True)),
        (64, "bf16", False, _knobs(128, 1, 1, "tma", "max", rescale="under", pingpong=False, stages=3)),
        (128, "bf16", True, _knobs(128, 2, 2, "tma", "late", dynamic=True)),
        (128, "fp16", True, _knobs(80, 3, 2, "tma", "max", lazy=8)),
        (128, "fp16", True, _knobs(128, 2, 2, "tma", "max", rescale="under", diagonal="half", dynamic=True)),
        (128, "fp16", False, _knobs(176, 2, 1, "direct", "late")),
        (
            128,
            "bf16",
            True,
            _knobs(32, 1, 1, "direct", "early", overlap=False, pingpong=False, stages=1, diagonal="mask"),
        ),
        (256, "bf16", True, _knobs(80, 2, 1, "direct", "late", lazy=8, dynamic=True)),
        (256, "fp16", True, _knobs(80, 2, 1, "tma", "early", rescale="before")),
    ]
    out = []
    for dim, dtype, causal, knobs in chosen:
        w = _small(dim, dtype, causal, lse=True)
        if not causal:
            knobs = {**knobs, "diagonal": "mask"}
        out.append((w, Candidate.of(SKETCH.name, SKETCH.version, knobs)))
    return out + [(w, Candidate.of(SKETCH.name, SKETCH.version, knobs)) for w, knobs in _wider_domain()]


def kernels() -> dict[str, tuple[AttentionWorkload, Candidate]]:
    """kernel key -> one (workload, candidate) that has it."""
    out: dict[str, tuple[AttentionWorkload, Candidate]] = {}
    for w, chosen in race_entries():
        for candidate in chosen:
            out.setdefault(kernel_key(w, candidate), (w, candidate))
    for w, candidate in checked_only():
        out.setdefault(kernel_key(w, candidate), (w, candidate))
    return out
