"""The Hopper GEMM sketches without tvm or a GPU: domains, constraints, launch formulas."""

import itertools
import math
import random

import pytest

from search_space.gemm import GemmWorkload
from search_space.hopper.limits import SHARED_BLOCK_BYTES, resident_clusters
from search_space.registry import generate_sketches, get_sketch, refusals
from search_space.sketches.cuda_gemm_padded import space as padded
from search_space.sketches.cuda_gemm_skinny import space as skinny
from search_space.sketches.cuda_gemm_splitk import space as splitk
from search_space.sketches.cuda_gemm_streamk import space as streamk
from search_space.sketches.cuda_gemm_ws import space as ws
from search_space.target import Target
from tilewright.runtime.formula import evaluate

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
NAMES = {"cuda_gemm_ws", "cuda_gemm_streamk", "cuda_gemm_splitk", "cuda_gemm_skinny", "cuda_gemm_padded"}
PLANS = {m.SKETCH.name: m.plan for m in (ws, streamk, splitk, skinny, padded)}
WORKLOADS = (
    {"m": 16, "n": 6144, "k": 4096, "dtype": "bf16", "trans_b": True, "b_constant": True},
    {"m": 128, "n": 10240, "k": 8192, "dtype": "bf16", "trans_b": True},
    {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"},
    {"m": 512, "n": 200, "k": 96, "batch": 3, "dtype": "bf16", "trans_a": True, "epilogue": "bias+gelu"},
    {"m": 4095, "n": 4095, "k": 4095, "dtype": "bf16", "trans_b": True},
    {"m": 4097, "n": 4095, "k": 1000, "dtype": "bf16", "trans_b": True},
)


def workload(**data: object) -> GemmWorkload:
    return GemmWorkload.from_json(data)


def extents(w: GemmWorkload) -> dict[str, int]:
    return {"m": w.m, "n": w.n, "k": w.k, "batch": w.batch}


@pytest.mark.parametrize("data", WORKLOADS, ids=lambda d: f"{d['m']}x{d['n']}x{d['k']}")
def test_seeds_and_random_legal_points_have_finite_features_and_fit_the_device(data: dict[str, object]) -> None:
    w, rng = GemmWorkload.from_json(data), random.Random(3)
    spaces = [s for s in generate_sketches(w, H200) if s.sketch.name in NAMES]
    assert spaces
    for space in spaces:
        points = list(space.sketch.seeds(w, H200))
        assert points
        for _ in range(1000):
            choice = {k.name: rng.choice(k.values) for k in space.knobs}
            if space.violated(choice) is None:
                points.append(choice)
        for knobs in points:
            assert space.violated(knobs) is None
            resources = space.sketch.resources(w, H200, knobs)
            assert 0 < resources.shared_bytes <= SHARED_BLOCK_BYTES
            assert resources.registers * resources.threads <= 65536 + 128 * 255
            features = space.sketch.features(w, H200, knobs)
            assert all(math.isfinite(v) for v in features.values())
            assert space.sketch.traffic(w, H200, knobs).memory_bytes >= w.min_bytes() * 0.99
            _, launch = PLANS[space.sketch.name](w, H200, knobs)
            for kernel in launch["kernels"]:
                grid = evaluate(kernel["grid"], extents(w))
                assert grid >= 1
                assert grid % kernel["cluster"] == 0


def test_each_workload_gets_the_structures_made_for_it() -> None:
    def names(**data: object) -> set[str]:
        return {s.sketch.name for s in generate_sketches(workload(**data), H200)} & NAMES

    aligned = {"n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True}
    tiles = {"cuda_gemm_ws", "cuda_gemm_streamk", "cuda_gemm_splitk"}
    assert names(m=16, **aligned) == {*tiles, "cuda_gemm_skinny"}
    assert names(m=4096, **aligned) == tiles
    assert names(m=4096, n=4096, k=64, dtype="bf16", trans_b=True) == tiles - {"cuda_gemm_splitk"}
    assert names(m=64, n=4096, k=4095, dtype="bf16", trans_b=True) == {"cuda_gemm_padded"}
    assert names(m=4096, n=4096, k=4096, dtype="fp32") & NAMES == set()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "fp8_e4m3"}, "dtype_a"),
        ({"dtype_out": "float32"}, "dtype_out"),
        ({"groups": 4, "grouping": "masked"}, "groups"),
    ],
)
def test_what_no_sketch_can_do_is_refused_by_field(change: dict[str, object], field: str) -> None:
    w = workload(**{"m": 64, "n": 64, "k": 64, "dtype": "bf16", **change})
    found = get_sketch("cuda_gemm_ws").refusal(w, H200)
    assert found is not None
    assert found.field == field


def test_an_older_card_is_refused_by_its_arch() -> None:
    old = Target(kind="cuda", arch="sm_70", model="V100", cores=80)
    reasons = refusals(workload(m=64, n=64, k=64, dtype="bf16"), old)
    assert {r.field for r in reasons} >= {"target.arch"}


BASE = {
    "block_m": 128, "block_n": 256, "block_k": 64, "stages": 4, "consumers": 2, "schedule": "cooperative",
    "cluster_m": 2, "cluster_n": 1, "store": "tma", "group": 8, "by_n": False, "persistent": True, "dependent": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("knobs", "shape", "name"),
    [
        ({}, {}, None),
        ({"stages": 5}, {}, "shared_memory"),
        ({"block_m": 64}, {}, "rows"),
        ({"consumers": 1}, {}, "accumulators"),
        ({"schedule": "pingpong"}, {}, "accumulators"),
        ({"schedule": "pingpong", "block_m": 64, "consumers": 1, "cluster_m": 1}, {}, "pingpong"),
        ({"schedule": "pingpong", "block_m": 64, "persistent": False}, {}, "pingpong"),
        ({"cluster_m": 4, "cluster_n": 4}, {}, "cluster"),
        ({"cluster_m": 2}, {"m": 100}, "cluster"),
        ({"block_n": 96, "cluster_m": 1, "stages": 4}, {"trans_b": False}, "slabs"),
        ({"block_n": 224, "cluster_m": 4}, {"m": 8192}, None),
        ({"store": "direct"}, {"n": 4095, "trans_b": True}, "store_alignment"),
        ({"store": "rows"}, {"m": 65536, "n": 65536}, "index"),
        ({"dependent": True}, {}, "dependent"),
    ],
)
def test_each_constraint_is_found_and_named(
    knobs: dict[str, object], shape: dict[str, object], name: str | None
) -> None:
    w = workload(**{"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True, **shape})
    broken = ws.SKETCH.violated(w, H200, {**BASE, **knobs})  # type: ignore[dict-item]
    assert (broken.name if broken else None) == name


def test_shared_memory_is_what_the_layout_adds_up_to() -> None:
    w = workload(m=4096, n=4096, k=4096, dtype="bf16", trans_b=True)
    tile, _ = ws.plan(w, H200, BASE)  # type: ignore[arg-type]
    stages = 4 * (128 * 64 + 256 * 64) * 2
    staging = 2 * 4 * 2 * 16 * 64 * 2
    assert tile.shared_bytes() == stages + staging + 16 * 4


def test_clusters_that_fit_the_card_at_once() -> None:
    assert [resident_clusters(c, 132) for c in (1, 2, 4, 8)] == [132, 66, 30, 15]
    assert resident_clusters(2, 132, blocks_per_sm=2) == 132
    assert resident_clusters(3, 132) == 40


def test_the_grid_of_a_persistent_kernel_stops_at_what_is_resident() -> None:
    big = workload(m=4096, n=4096, k=4096, dtype="bf16", trans_b=True)
    _, launch = ws.plan(big, H200, BASE)  # type: ignore[arg-type]
    assert evaluate(launch["kernels"][0]["grid"], extents(big)) == 132
    assert evaluate(launch["kernels"][0]["grid"], {"m": 256, "n": 512, "k": 64, "batch": 1}) == 4
    _, launch = ws.plan(big, H200, {**BASE, "persistent": False})  # type: ignore[arg-type]
    assert evaluate(launch["kernels"][0]["grid"], extents(big)) == 16 * 16 * 2


SPLIT = {
    "block_m": 128, "block_n": 192, "block_k": 64, "stages": 5, "consumers": 2, "split": 2, "turns": 1, "cluster_m": 1,
    "cluster_n": 1, "store": "tma", "group": 8, "by_n": False, "dependent": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("knobs", "shape", "name"),
    [
        ({}, {}, None),
        ({"split": 4}, {}, None),
        ({"split": 8}, {}, "slice"),
        ({"split": 8, "store": "direct"}, {}, None),
        ({"split": 5, "store": "direct"}, {}, "slice"),
        ({"split": 3}, {"k": 128}, "split"),
        ({"stages": 2}, {}, "exchange"),
        ({"split": 4, "cluster_m": 4}, {}, "cluster"),
        ({"stages": 6}, {}, "shared_memory"),
        ({"split": 1}, {}, "split"),
        ({"split": 1, "turns": 2}, {}, "exchange"),
        ({"block_m": 64}, {}, "rows"),
        ({"block_m": 64, "turns": 2, "split": 1}, {}, None),
        ({"turns": 2, "consumers": 1, "block_m": 64}, {}, "turns"),
        ({"turns": 2, "block_n": 224, "split": 1}, {}, "accumulators"),
        ({"dependent": True}, {}, "dependent"),
    ],
)
def test_each_constraint_of_a_split_inside_a_cluster_is_found_and_named(
    knobs: dict[str, object], shape: dict[str, object], name: str | None
) -> None:
    w = workload(**{"m": 512, "n": 1536, "k": 7168, "dtype": "bf16", "trans_b": True, **shape})
    broken = splitk.SKETCH.violated(w, H200, {**SPLIT, **knobs})  # type: ignore[dict-item]
    assert (broken.name if broken else None) == name


@pytest.mark.parametrize("split", [2, 3, 4, 8])
def test_a_split_divides_columns_and_memory_among_its_ranks(split: int) -> None:
    w = workload(m=512, n=1536, k=7168, dtype="bf16", trans_b=True)
    tile, launch = splitk.plan(w, H200, {**SPLIT, "split": split, "store": "direct"})  # type: ignore[arg-type]
    assert tile.slice_width * split == 192
    # What all ranks send to one owner is one tile of float32: its own slice from each of them.
    assert tile.exchange_bytes == split * 128 * tile.slice_width * 4
    assert tile.exchange_bytes <= tile.ring_bytes < tile.shared_bytes() <= SHARED_BLOCK_BYTES
    kernel = launch["kernels"][0]
    assert evaluate(kernel["grid"], extents(w)) == 4 * 8 * split
    assert kernel["cluster"] == split
    assert launch["workspace"] == {}


@pytest.mark.parametrize("m", [64, 128, 300, 1000, 4096])
@pytest.mark.parametrize("n", [512, 6144, 10240])
@pytest.mark.parametrize("dealing", ["even", "split", "hybrid"])
def test_stream_k_deals_out_every_iteration_once(m: int, n: int, dealing: str) -> None:
    knobs = {
        "block_m": 128, "block_n": 128, "block_k": 64, "stages": 4, "consumers": 2, "cluster_m": 1, "cluster_n": 1,
        "store": "tma", "dealing": dealing, "group": 8, "by_n": False, "dependent": False,
    }  # fmt: skip
    w = workload(m=m, n=n, k=4096, dtype="bf16", trans_b=True)
    _, launch = streamk.plan(w, H200, knobs)  # type: ignore[arg-type]
    arguments = launch["kernels"][0]["arguments"]
    clusters = evaluate(arguments["clusters"]["value"], extents(w))
    stream = evaluate(arguments["stream_tiles"]["value"], extents(w))
    tiles, steps = -(-m // 128) * -(-n // 128), 64
    assert 1 <= clusters <= 132
    assert 0 <= stream <= tiles
    bounds = [c * stream * steps // clusters for c in range(clusters + 1)]
    shares = [b - a for a, b in itertools.pairwise(bounds)]
    assert sum(shares) == stream * steps
    assert max(shares) - min(shares) <= 1
    if dealing == "split":
        assert stream == tiles
        assert tiles > 132 or clusters % tiles == 0
    if dealing == "hybrid" and tiles > 132:
        assert (tiles - stream) % clusters == 0
        assert stream == 0 or 132 < stream < 2 * 132
    if stream:
        assert min(shares) >= 1, "an empty share would leave its owner waiting for a flag that nobody raises"


def test_the_copy_writes_rows_that_tma_can_read() -> None:
    w = workload(m=2047, n=2047, k=2047, dtype="bf16", trans_b=True)
    knobs = padded.SKETCH.seeds(w, H200)[0]
    _, launch = padded.plan(w, H200, knobs)
    names = extents(w)
    copy, gemm = launch["kernels"]
    assert evaluate(copy["grid"], names) == 2 * 256
    for operand in ("A_map", "B_map"):
        field = gemm["arguments"][operand]
        assert [evaluate(s, names) for s in field["strides"]] == [2048 * 2]
        assert [evaluate(d, names) for d in field["dims"]] == [2047, 2047]
    assert {k: evaluate(v["nbytes"], names) for k, v in launch["workspace"].items()} == {
        "padded_a": 2047 * 2048 * 2,
        "padded_b": 2047 * 2048 * 2,
    }
    assert gemm["dependent"]
    assert not copy["dependent"]
