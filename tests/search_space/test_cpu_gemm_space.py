"""Knobs, constraints and features of the CPU GEMM sketches, without compiling anything."""

import dataclasses
import math
import random

import pytest

from search_space.errors import InvalidField
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.registry import check_supported, generate_sketches, get_sketch
from search_space.sketch import Space, legal_points
from search_space.target import Target

AVX2 = Target("cpu", "znver3", "any", 2, 256, 32 << 10, 512 << 10, 32 << 20, features=("avx2", "f16c"))
AVX512 = dataclasses.replace(AVX2, arch="znver4", vector_bits=512, features=("avx512f",))
NEON = dataclasses.replace(AVX2, arch="neoverse-n1", vector_bits=128, features=("neon",))
DIMS = (1, 2, 3, 5, 7, 16, 33, 64, 130, 1000, 4096)
SHARED_FEATURES = {
    "tile_m",
    "tile_n",
    "tile_k",
    "unroll_k",
    "vector_lanes",
    "accumulators",
    "parallel_grains",
    "grain_waste",
    "tail_waste_m",
    "tail_waste_n",
}
PACKED: Knobs = {
    "mr": 6,
    "nv": 2,
    "ku": 1,
    "kc": 1000,
    "nb": 1,
    "m_chunks": 1,
    "n_inner": True,
    "pack_a": "none",
    "pack_b": "block",
}


def float32(m: int, n: int, k: int, **flags: object) -> GemmWorkload:
    return GemmWorkload(m, n, k, "float32", "float32", "float32", **flags)  # type: ignore[arg-type]


def sample(space: Space, rng: random.Random, tries: int) -> list[Knobs]:
    points = [{k.name: rng.choice(k.values) for k in space.knobs} for _ in range(tries)]
    return [p for p in points if space.violated(p) is None]


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda t: t.arch)
@pytest.mark.parametrize("seed", range(20))
def test_every_space_has_legal_points_with_sound_numbers(target: Target, seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice(("float32", "bfloat16", "float16"))
    workload = GemmWorkload(
        *(rng.choice(DIMS) for _ in range(3)),
        dtype,
        dtype,
        dtype,
        trans_a=rng.random() < 0.5,
        trans_b=rng.random() < 0.5,
        b_constant=rng.random() < 0.5,
    )
    spaces = generate_sketches(workload, target)
    assert spaces[0].sketch.name == "cpu_gemm_loop"
    for space in spaces:
        points = sample(space, rng, 50) or [next(legal_points(space))]
        for knobs in points[:10]:
            features = space.sketch.features(workload, target, knobs)
            assert features.keys() >= SHARED_FEATURES
            assert all(math.isfinite(v) for v in features.values())
            assert 0.0 <= features["grain_waste"] < 1.0
            traffic = space.sketch.traffic(workload, target, knobs)
            assert traffic.l1_bytes >= traffic.memory_bytes >= 0.0
            assert space.sketch.resources(workload, target, knobs).threads >= 1


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda t: t.arch)
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", [(1, 4096, 4096), (16, 4096, 4096), (1024, 1024, 1024), (5, 9, 3)])
def test_seeds_are_legal_and_distinct(shape: tuple[int, int, int], trans_b: bool, target: Target) -> None:
    workload = float32(*shape, trans_b=trans_b)
    seeds = [(s, k) for s in generate_sketches(workload, target) for k in s.sketch.seeds(workload, target)]
    assert all(space.violated(knobs) is None for space, knobs in seeds)
    assert len({space.candidate(knobs).key for space, knobs in seeds}) == len(seeds)
    if max(shape) > 100:
        assert 3 <= len(seeds) <= 24


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"mr": 8, "nv": 2}, "registers"),
        ({"mr": 6, "nv": 3}, "registers"),
        ({"mr": 2, "nv": 1}, "latency"),
        ({"nb": 128}, "n_block"),
        ({"m_chunks": 500}, "m_chunks"),
        ({"m_chunks": 90}, "m_chunks"),
        ({"n_inner": False}, "order"),
        ({"kc": 254, "ku": 4, "nb": 4}, "unroll"),
    ],
)
def test_constraints_of_the_register_tile(change: Knobs, constraint: str) -> None:
    workload = float32(1000, 1000, 1000)
    sketch = get_sketch("cpu_gemm_packed")
    assert sketch.violated(workload, AVX2, PACKED) is None
    broken = sketch.violated(workload, AVX2, {**PACKED, **change})
    assert broken is not None
    assert broken.name == constraint


def test_a_wider_register_file_holds_a_larger_tile() -> None:
    workload, sketch = float32(1000, 1000, 1000), get_sketch("cpu_gemm_packed")
    assert sketch.violated(workload, AVX512, {**PACKED, "mr": 12}) is None
    assert sketch.features(workload, AVX512, PACKED)["tile_n"] == 32.0
    assert sketch.features(workload, AVX2, PACKED)["tile_n"] == 16.0
    assert sketch.features(workload, NEON, PACKED)["tile_n"] == 8.0


def test_shifted_tiles_count_as_waste() -> None:
    features = get_sketch("cpu_gemm_packed").features(float32(1000, 999, 1000), AVX2, PACKED)
    assert features["tail_waste_m"] == pytest.approx(1 - 1000 / 1002)
    assert features["tail_waste_n"] == pytest.approx(1 - 999 / 1008)
    assert features["parallel_grains"] == 63


def test_split_k_makes_grains_where_the_output_has_few() -> None:
    workload, sketch = float32(8, 16, 8192), get_sketch("cpu_gemm_splitk")
    knobs = sketch.seeds(workload, AVX2)[0]
    assert sketch.features(workload, AVX2, knobs)["parallel_grains"] >= AVX2.cores
    assert sketch.resources(workload, AVX2, knobs).workspace_bytes >= 2 * 8 * 16 * 4


@pytest.mark.parametrize(
    ("field", "workload"),
    [
        ("dtype_a", GemmWorkload(8, 8, 8, "float8_e4m3", "float8_e4m3", "bfloat16")),
        ("groups", float32(8, 8, 8, groups=4, grouping="contiguous")),
    ],
)
def test_what_no_cpu_sketch_does_is_refused_by_name(field: str, workload: GemmWorkload) -> None:
    with pytest.raises(InvalidField) as refused:
        check_supported(workload, AVX2)
    assert refused.value.field == field
    assert refused.value.allowed


def test_float16_needs_conversions() -> None:
    sse = dataclasses.replace(AVX2, vector_bits=128, features=("sse4.2",))
    with pytest.raises(InvalidField) as refused:
        check_supported(GemmWorkload(8, 8, 8, "float16", "float16", "float16"), sse)
    assert "float16" not in refused.value.allowed


@pytest.mark.parametrize(
    ("name", "offered", "missing"),
    [
        ("cpu_gemm_gemv", (1, 64, 64), (2, 64, 64)),
        ("cpu_gemm_stream", (16, 64, 64), (65, 64, 64)),
        ("cpu_gemm_splitk", (16, 64, 128), (16, 64, 127)),
        ("cpu_gemm_tile", (16, 4, 64), (16, 3, 64)),
    ],
)
def test_where_a_sketch_is_offered(name: str, offered: tuple[int, int, int], missing: tuple[int, int, int]) -> None:
    def names(shape: tuple[int, int, int]) -> set[str]:
        return {s.sketch.name for s in generate_sketches(float32(*shape), AVX2)}

    assert name in names(offered)
    assert name not in names(missing)
