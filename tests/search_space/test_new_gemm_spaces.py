"""GEMV, float8 and grouped GEMM sketches without tvm or a GPU: domains, constraints, launch formulas, refusals."""

import math
import random

import pytest

from search_space.errors import InvalidField
from search_space.gemm import GemmWorkload
from search_space.hopper.limits import SHARED_BLOCK_BYTES
from search_space.registry import check_supported, generate_sketches
from search_space.sketches.cuda_gemm_fp8 import space as fp8
from search_space.sketches.cuda_gemm_fp8_skinny import space as fp8_skinny
from search_space.sketches.cuda_gemm_gemv import space as gemv
from search_space.sketches.cuda_gemm_grouped import space as grouped
from search_space.target import Target
from tilewright.runtime.formula import evaluate

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
CPU = Target(kind="cpu", arch="x86-64", model="a CPU", cores=2, vector_bits=512)
PLANS = {m.SKETCH.name: m.plan for m in (gemv, fp8, fp8_skinny, grouped)}
DECODE = {"m": 4, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True, "b_constant": True}
FLOAT8 = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp8", "trans_b": True, "scales": "tensor"}
EXPERTS = {"m": 256, "n": 4096, "k": 7168, "dtype": "bf16", "trans_b": True, "groups": 32, "grouping": "contiguous"}
WORKLOADS = (
    DECODE,
    {**DECODE, "m": 1, "trans_b": False, "k": 4097},
    {**DECODE, "m": 2, "n": 4095, "k": 4095, "batch": 3},
    FLOAT8,
    {**FLOAT8, "scales": "block", "m": 16, "b_constant": True},
    {**FLOAT8, "scales": "block", "n": 331, "k": 400},
    EXPERTS,
    {**EXPERTS, "m": 16, "groups": 256, "grouping": "masked"},
)


def workload(**data: object) -> GemmWorkload:
    return GemmWorkload.from_json(data)


def extents(w: GemmWorkload) -> dict[str, int]:
    return {"m": w.m, "n": w.n, "k": w.k, "batch": w.batch, "groups": w.groups}


@pytest.mark.parametrize("data", WORKLOADS, ids=lambda d: f"{d['dtype']}-{d['m']}x{d['n']}x{d['k']}")
def test_seeds_and_random_legal_points_have_finite_features_and_fit_the_device(data: dict[str, object]) -> None:
    w, rng = GemmWorkload.from_json(data), random.Random(5)
    spaces = [s for s in generate_sketches(w, H200) if s.sketch.name in PLANS]
    assert spaces
    for space in spaces:
        points = list(space.sketch.seeds(w, H200))
        assert points
        for _ in range(500):
            choice = {k.name: rng.choice(k.values) for k in space.knobs}
            if space.violated(choice) is None:
                points.append(choice)
        for knobs in points:
            assert space.violated(knobs) is None
            assert set(knobs) == {k.name for k in space.knobs}
            resources = space.sketch.resources(w, H200, knobs)
            assert 0 < resources.shared_bytes <= SHARED_BLOCK_BYTES
            assert 0 < resources.registers <= 255
            assert resources.threads <= 1024
            assert all(math.isfinite(v) for v in space.sketch.features(w, H200, knobs).values())
            assert space.sketch.traffic(w, H200, knobs).memory_bytes >= w.min_bytes() * 0.99
            _, launch = PLANS[space.sketch.name](w, H200, knobs)
            for kernel in launch["kernels"]:
                grid = evaluate(kernel["grid"], extents(w))
                assert grid >= 1
                assert grid % kernel["cluster"] == 0


def test_each_workload_gets_the_structures_made_for_it() -> None:
    def names(data: dict[str, object]) -> set[str]:
        return {s.sketch.name for s in generate_sketches(GemmWorkload.from_json(data), H200)}

    assert "cuda_gemm_gemv" in names(DECODE)
    assert "cuda_gemm_gemv" not in names({**DECODE, "m": 5})
    assert names(FLOAT8) == {"cuda_gemm_fp8"}
    assert names({**FLOAT8, "m": 16}) == {"cuda_gemm_fp8", "cuda_gemm_fp8_skinny"}
    assert names(EXPERTS) == {"cuda_gemm_grouped"}


@pytest.mark.parametrize(
    ("data", "field", "allowed"),
    [
        ({**FLOAT8, "trans_b": False}, "trans_b", "true"),
        ({**FLOAT8, "trans_a": True}, "trans_a", "false"),
        ({**FLOAT8, "k": 4095}, "k", ""),
        ({**FLOAT8, "dtype_out": "float32"}, "dtype_out", "bfloat16"),
        ({**EXPERTS, "trans_b": False}, "trans_b", "true"),
        ({**EXPERTS, "k": 4095}, "k", ""),
    ],
)
def test_a_refusal_speaks_of_the_sketch_made_for_the_type(data: dict[str, object], field: str, allowed: str) -> None:
    with pytest.raises(InvalidField) as refused:
        check_supported(GemmWorkload.from_json(data), H200)
    assert refused.value.field == field
    assert (allowed in refused.value.allowed) if allowed else refused.value.message


@pytest.mark.parametrize(("data", "field"), [(FLOAT8, "dtype_a"), (EXPERTS, "groups")])
def test_a_cpu_says_what_it_can_do_instead(data: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        check_supported(GemmWorkload.from_json(data), CPU)
    assert refused.value.field == field
    assert set(refused.value.allowed) == ({"float32", "bfloat16", "float16"} if field == "dtype_a" else {"1"})


_TILE = {
    "block_m": 128, "block_n": 256, "slabs": 1, "stages": 4, "consumers": 2, "schedule": "cooperative", "cluster_m": 1,
    "cluster_n": 1, "store": "tma", "group": 8, "by_n": False, "persistent": True, "promote": False, "overlap": False,
}  # fmt: skip
_SKINNY = {
    "pad_m": 16, "rows": 64, "slabs": 2, "stages": 8, "consumers": 1, "split": 2, "blocks_per_sm": 1, "red_buffers": 2,
    "dependent": False,
}  # fmt: skip
_GEMV = {"warps": 8, "split": 4, "rows": 2, "unroll": 4, "dependent": False}


@pytest.mark.parametrize(
    ("module", "data", "base", "knobs", "name"),
    [
        (fp8, FLOAT8, _TILE, {}, None),
        (fp8, FLOAT8, _TILE, {"stages": 5}, "shared_memory"),
        (fp8, FLOAT8, _TILE, {"block_m": 64}, "rows"),
        (fp8, FLOAT8, _TILE, {"promote": True}, "accumulators"),
        (fp8, FLOAT8, _TILE, {"promote": True, "block_n": 192}, None),
        (fp8, FLOAT8 | {"scales": "block"}, _TILE, {"block_m": 256, "block_n": 128}, None),
        (fp8, FLOAT8, _TILE, {"schedule": "pingpong", "block_n": 128, "persistent": False}, "pingpong"),
        (fp8, FLOAT8 | {"scales": "block"}, _TILE, {"block_n": 192}, "scale_block"),
        (fp8, FLOAT8 | {"scales": "block"}, _TILE, {"block_n": 128, "slabs": 2, "stages": 2}, "scale_block"),
        (fp8, FLOAT8 | {"n": 4095}, _TILE, {}, "store_alignment"),
        (fp8, FLOAT8 | {"m": 100}, _TILE, {"cluster_m": 2}, "cluster"),
        (fp8, FLOAT8, _TILE, {"overlap": True}, "overlap"),
        (fp8, FLOAT8 | {"scales": "block"}, _TILE, {"block_m": 256, "block_n": 64, "overlap": True}, "overlap"),
        (fp8, FLOAT8 | {"scales": "block"}, _TILE, {"block_n": 128, "overlap": True}, None),
        (grouped, EXPERTS, _TILE, {}, "store_groups"),
        (grouped, EXPERTS, _TILE, {"store": "rows"}, None),
        (fp8_skinny, FLOAT8 | {"m": 16}, _SKINNY, {}, None),
        (fp8_skinny, FLOAT8 | {"m": 16}, _SKINNY, {"pad_m": 8}, "pad_m"),
        (fp8_skinny, FLOAT8 | {"m": 16}, _SKINNY, {"consumers": 2}, "rows"),
        (fp8_skinny, FLOAT8 | {"m": 16}, _SKINNY, {"stages": 16}, "shared_memory"),
        (fp8_skinny, FLOAT8 | {"m": 16, "k": 256}, _SKINNY, {}, "split"),
        (fp8_skinny, FLOAT8 | {"m": 16, "n": 65536}, _SKINNY, {"red_buffers": 1}, "red_buffers"),
        (fp8_skinny, FLOAT8 | {"m": 16}, _SKINNY, {"dependent": True}, "dependent"),
        (fp8_skinny, FLOAT8 | {"m": 128}, _SKINNY, {"pad_m": 128, "rows": 256, "stages": 2}, "accumulators"),
        (fp8_skinny, FLOAT8 | {"m": 16, "scales": "block"}, _SKINNY, {"slabs": 1}, "slabs"),
        (gemv, DECODE, _GEMV, {}, None),
        (gemv, DECODE, _GEMV, {"split": 16}, "split"),
        (gemv, DECODE, _GEMV, {"rows": 8, "unroll": 8}, "registers"),
        (gemv, DECODE | {"k": 512}, _GEMV, {}, "idle"),
        (gemv, DECODE | {"b_constant": False}, _GEMV, {"dependent": True}, "dependent"),
    ],
)  # fmt: skip
def test_each_constraint_is_found_and_named(module, data, base, knobs, name) -> None:  # type: ignore[no-untyped-def]
    broken = module.SKETCH.violated(GemmWorkload.from_json(data), H200, {**base, **knobs})
    assert (broken.name if broken else None) == name


def test_the_widest_load_that_the_rows_of_b_allow() -> None:
    assert [gemv.widest_load(k) for k in (4096, 4100, 4098, 4097)] == [8, 4, 2, 1]
    _, launch = gemv.plan(workload(**DECODE), H200, _GEMV)  # type: ignore[arg-type]
    assert launch["kernels"][0]["arguments"]["B_ptr"] == {"kind": "pointer", "operand": "b", "align": 16}
    assert evaluate(launch["kernels"][0]["grid"], extents(workload(**DECODE))) == 4096 // 4


def test_shared_memory_is_what_the_layout_adds_up_to() -> None:
    tile, _ = fp8.plan(workload(**FLOAT8), H200, _TILE)  # type: ignore[arg-type]
    assert tile.shared_bytes() == 4 * (128 + 256) * 128 + 2 * 4 * 2 * 16 * 64 * 2 + 16 * 4
    skinny, _ = fp8_skinny.plan(workload(**FLOAT8), H200, _SKINNY)  # type: ignore[arg-type]
    assert skinny.shared_bytes() == 8 * (64 + 16) * 256 + 2 * 64 * 16 * 4 + 16 * 8 + 16


@pytest.mark.parametrize("data", [EXPERTS, {**EXPERTS, "grouping": "masked"}])
def test_tensor_maps_of_groups_see_one_matrix_of_rows_and_one_b_a_group(data: dict[str, object]) -> None:
    w = GemmWorkload.from_json(data)
    _, launch = grouped.plan(w, H200, {**_TILE, "store": "rows"})  # type: ignore[arg-type]
    arguments, names = launch["kernels"][0]["arguments"], extents(w)
    assert [evaluate(d, names) for d in arguments["A_map"]["dims"]] == [7168, 32 * 256]
    assert [evaluate(d, names) for d in arguments["B_map"]["dims"]] == [7168, 4096, 32]
    assert [evaluate(s, names) for s in arguments["B_map"]["strides"]] == [7168 * 2, 7168 * 4096 * 2]
    assert arguments["ends_ptr"]["operand"] == ("counts" if data["grouping"] == "masked" else "offsets")
    assert evaluate(launch["kernels"][0]["grid"], names) == 132
