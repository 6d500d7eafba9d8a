"""The sm_80 and float32 GEMM sketches without tvm or a GPU: domains, constraints, shared-memory layout, launches."""

import math
import random

import pytest

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.registry import generate_sketches, get_sketch
from search_space.sketches.cuda_gemm_mma import space as mma
from search_space.sketches.cuda_gemm_mma.tile import SHARED_BLOCK, permuted
from search_space.sketches.cuda_gemm_simt import space as simt
from search_space.target import Target
from tilewright.runtime.formula import evaluate

CARDS = {
    "sm_80": Target("cuda", "sm_80", "NVIDIA A100", cores=108, l2_bytes=40 << 20, shared_bytes=163 << 10),
    "sm_86": Target("cuda", "sm_86", "NVIDIA A10", cores=72, l2_bytes=6 << 20, shared_bytes=99 << 10),
    "sm_89": Target("cuda", "sm_89", "NVIDIA L40S", cores=142, l2_bytes=96 << 20, shared_bytes=99 << 10),
    "sm_90a": Target("cuda", "sm_90a", "NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 << 10),
}
SHAPES: tuple[dict[str, object], ...] = (
    {"m": 16, "n": 6144, "k": 4096, "trans_b": True},
    {"m": 4096, "n": 4096, "k": 4096},
    {"m": 1000, "n": 999, "k": 1001, "trans_a": True, "epilogue": "bias+gelu"},
    {"m": 1, "n": 4097, "k": 3, "batch": 3, "trans_b": True},
)
PLANS = {"cuda_gemm_mma": mma.plan, "cuda_gemm_simt": simt.plan}
MMA: Knobs = {
    "block_m": 128, "block_n": 128, "block_k": 32, "warps_m": 2, "warps_n": 2, "stages": 4, "blocks_per_sm": 1,
    "store": "staged", "group": 8, "by_n": False,
}  # fmt: skip
SIMT: Knobs = {
    "block_m": 128, "block_n": 128, "block_k": 8, "thread_m": 8, "thread_n": 8, "stages": 4, "blocks_per_sm": 1,
    "fragment_sets": 1, "group": 8, "by_n": False,
}  # fmt: skip


def workload(**data: object) -> GemmWorkload:
    return GemmWorkload.from_json({"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", **data})


@pytest.mark.parametrize("arch", CARDS)
@pytest.mark.parametrize(("name", "dtype"), [("cuda_gemm_mma", "fp16"), ("cuda_gemm_simt", "fp32")])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda d: f"{d['m']}x{d['n']}x{d['k']}")
def test_legal_points_fit_the_card_and_cover_the_product(
    arch: str, name: str, dtype: str, shape: dict[str, object]
) -> None:
    card, w, rng = CARDS[arch], workload(dtype=dtype, **shape), random.Random(3)
    space = next(s for s in generate_sketches(w, card) if s.sketch.name == name)
    points = list(space.sketch.seeds(w, card))
    if arch != "sm_90a":
        assert points, "a card without wgmma starts from what an expert would try"
    for _ in range(400):
        choice = {k.name: rng.choice(k.values) for k in space.knobs}
        if space.violated(choice) is None:
            points.append(choice)
    assert len(points) > 5
    for knobs in points:
        assert space.violated(knobs) is None
        used = space.sketch.resources(w, card, knobs)
        assert 0 < used.shared_bytes <= SHARED_BLOCK[arch] * 1024
        assert used.registers * used.threads <= 65536
        assert used.threads % 32 == 0
        assert all(math.isfinite(v) for v in space.sketch.features(w, card, knobs).values())
        assert space.sketch.traffic(w, card, knobs).memory_bytes >= w.min_bytes() * 0.99
        tile, launch = PLANS[name](w, card, knobs)
        extents = {"m": w.m, "n": w.n, "k": w.k, "batch": w.batch}
        blocks = evaluate(launch["kernels"][0]["grid"], extents)
        assert blocks * tile.block_m * tile.block_n >= w.batch * w.m * w.n


@pytest.mark.parametrize("units", [2, 4, 8, 16, 24, 32])
def test_the_eight_rows_of_an_ldmatrix_lie_in_different_banks(units: int) -> None:
    for unit in range(units):
        places = [row * units + permuted(units, unit, row % 8) for row in range(8)]
        assert len({place % 8 for place in places}) == 8, "eight units of 16 bytes are all 32 banks"
    for row in range(8):
        assert sorted(permuted(units, unit, row) for unit in range(units)) == list(range(units))


@pytest.mark.parametrize(
    ("arch", "change", "shape", "name"),
    [
        ("sm_80", {}, {}, None),
        ("sm_80", {"block_k": 64, "stages": 6}, {}, "shared_memory"),
        ("sm_80", {"block_k": 64, "stages": 4}, {}, None),
        ("sm_89", {"block_k": 64, "stages": 4}, {}, "shared_memory"),
        ("sm_80", {"block_m": 16}, {}, "warp_tile"),
        ("sm_80", {"block_n": 96, "warps_n": 1}, {"trans_b": False}, "units"),
        ("sm_80", {"block_m": 256, "block_n": 256}, {}, "registers"),
        ("sm_80", {"blocks_per_sm": 3, "stages": 2}, {}, "registers"),
        ("sm_80", {"warps_m": 1, "warps_n": 1, "block_m": 32, "block_n": 32}, {}, "threads"),
        ("sm_80", {}, {"n": 4092}, "staging"),
        ("sm_80", {"store": "direct"}, {"n": 4091}, None),
        ("sm_80", {"block_k": 16, "stages": 2}, {}, "staging"),
    ],
)
def test_each_constraint_of_the_tensor_core_sketch_is_found_and_named(
    arch: str, change: Knobs, shape: dict[str, object], name: str | None
) -> None:
    w = workload(**{"trans_b": True, **shape})
    broken = mma.SKETCH.violated(w, CARDS[arch], {**MMA, **change})
    assert (broken.name if broken else None) == name


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, None),
        ({"block_m": 16}, "warp_tile"),
        ({"thread_m": 16, "thread_n": 16, "block_m": 256, "block_n": 256}, "registers"),
        ({"thread_m": 4, "thread_n": 4, "block_m": 256, "block_n": 256}, "threads"),
        ({"block_k": 32, "stages": 6}, "shared_memory"),
        ({"fragment_sets": 2}, None),
        ({"blocks_per_sm": 2}, "registers"),
        ({"thread_m": 4, "thread_n": 4, "block_k": 2, "blocks_per_sm": 1}, "copies"),
    ],
)
def test_each_constraint_of_the_float32_sketch_is_found_and_named(change: Knobs, name: str | None) -> None:
    broken = simt.SKETCH.violated(workload(dtype="fp32", trans_b=True), CARDS["sm_80"], {**SIMT, **change})
    assert (broken.name if broken else None) == name


@pytest.mark.parametrize(
    ("n", "k", "trans_b", "vectors"),
    [
        (64, 64, True, (8, 8)),
        (64, 60, True, (4, 4)),
        (66, 62, False, (2, 2)),
        (63, 61, True, (1, 1)),
        (63, 64, False, (8, 1)),
    ],
)
def test_copies_are_as_wide_as_the_rows_are_aligned(n: int, k: int, trans_b: bool, vectors: tuple[int, int]) -> None:
    w = workload(m=64, n=n, k=k, trans_b=trans_b)
    tile = mma.tile_of(w, {**MMA, "store": "direct"})
    assert (tile.vector_a, tile.vector_b) == vectors


def test_an_a100_gets_sketches_for_half_types_and_for_float32() -> None:
    def names(**data: object) -> set[str]:
        return {s.sketch.name for s in generate_sketches(workload(**data), CARDS["sm_80"])}

    assert names() == {"cuda_gemm_mma"}
    assert names(dtype="fp32") == {"cuda_gemm_simt"}
    assert names(dtype="fp32", dtype_out="bf16") == set()


@pytest.mark.parametrize(
    ("sketch", "data", "field"),
    [
        ("cuda_gemm_mma", {"dtype": "fp8_e4m3"}, "dtype_a"),
        ("cuda_gemm_mma", {"dtype_out": "float32"}, "dtype_out"),
        ("cuda_gemm_simt", {}, "dtype_a"),
        ("cuda_gemm_simt", {"dtype": "fp32", "groups": 4, "grouping": "masked"}, "groups"),
        ("cuda_gemm_simt", {"dtype": "fp32", "m": 65536, "n": 65536, "k": 64}, "m"),
    ],
)
def test_what_they_cannot_do_is_refused_by_field(sketch: str, data: dict[str, object], field: str) -> None:
    found = get_sketch(sketch).refusal(workload(**data), CARDS["sm_80"])
    assert found is not None
    assert found.field == field


def test_an_older_card_is_refused_with_what_would_do() -> None:
    volta = Target("cuda", "sm_70", "NVIDIA V100", cores=80)
    found = get_sketch("cuda_gemm_mma").refusal(workload(), volta)
    assert found is not None
    assert found.field == "target.arch"
    assert "sm_80" in found.allowed
