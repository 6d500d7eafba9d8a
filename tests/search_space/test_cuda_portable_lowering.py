"""The sm_80 and float32 GEMM sketches through TVM and nvcc: cubins for older cards and for Hopper, without a GPU."""

import importlib
import random

import pytest

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.registry import get_sketch
from search_space.target import Target
from workers.build import cuda
from workers.build.result import BuildToolMissing

CARDS = {
    "sm_80": Target("cuda", "sm_80", "NVIDIA A100", cores=108, l2_bytes=40 << 20, shared_bytes=163 << 10),
    "sm_89": Target("cuda", "sm_89", "NVIDIA L40S", cores=142, l2_bytes=96 << 20, shared_bytes=99 << 10),
    "sm_90a": Target("cuda", "sm_90a", "NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 << 10),
}
ALIGNED = {"m": 512, "n": 1536, "k": 7168, "dtype": "bf16", "trans_b": True}
ODD = {"m": 513, "n": 1535, "k": 715, "dtype": "fp16", "trans_b": True, "epilogue": "bias+gelu"}
BATCH = {"m": 120, "n": 200, "k": 66, "dtype": "bf16", "trans_a": True, "batch": 3, "epilogue": "bias+silu"}
_MMA: Knobs = {
    "block_m": 128, "block_n": 128, "block_k": 32, "warps_m": 2, "warps_n": 2, "stages": 4, "blocks_per_sm": 1,
    "store": "staged", "group": 8, "by_n": False,
}  # fmt: skip
_SIMT: Knobs = {
    "block_m": 128, "block_n": 128, "block_k": 8, "thread_m": 8, "thread_n": 8, "stages": 4, "fragment_sets": 1,
    "blocks_per_sm": 1, "group": 8, "by_n": False,
}  # fmt: skip
# (sketch, arch, workload, knobs that differ from the plain choice): the widest, narrowest and most crowded points.
EDGES: tuple[tuple[str, str, dict[str, object], Knobs], ...] = (
    ("cuda_gemm_mma", "sm_80", ALIGNED, {}),
    ("cuda_gemm_mma", "sm_80", ODD, {"store": "direct", "warps_n": 4}),
    ("cuda_gemm_mma", "sm_89", BATCH, {"block_k": 64, "stages": 3}),
    ("cuda_gemm_mma", "sm_90a", ALIGNED, {"block_n": 256, "warps_n": 4, "stages": 5}),
    ("cuda_gemm_mma", "sm_80", ALIGNED, {"block_m": 16, "warps_m": 1, "warps_n": 4, "block_k": 64, "stages": 8}),
    (
        "cuda_gemm_mma",
        "sm_89",
        ALIGNED | {"trans_b": False},
        {"block_m": 64, "warps_n": 4, "blocks_per_sm": 2, "stages": 2},
    ),
    ("cuda_gemm_simt", "sm_80", ALIGNED, {}),
    ("cuda_gemm_simt", "sm_80", ODD, {"fragment_sets": 2, "blocks_per_sm": 1}),
    ("cuda_gemm_simt", "sm_90a", BATCH, {"block_n": 256, "thread_m": 16, "fragment_sets": 2, "blocks_per_sm": 1}),
    (
        "cuda_gemm_simt",
        "sm_89",
        BATCH,
        {"block_m": 32, "block_n": 64, "thread_m": 4, "thread_n": 4, "block_k": 16, "blocks_per_sm": 3},
    ),
)
QUICK = (1, 6)


def choose(name: str, arch: str, data: dict[str, object], change: Knobs) -> tuple[GemmWorkload, Target, Knobs]:
    simt = name == "cuda_gemm_simt"
    w = GemmWorkload.from_json(data | ({"dtype": "fp32"} if simt else {}))
    knobs = (_SIMT if simt else _MMA) | change
    assert get_sketch(name).violated(w, CARDS[arch], knobs) is None, "an edge is a legal choice"
    return w, CARDS[arch], knobs


def lower(name: str, w: GemmWorkload, card: Target, knobs: Knobs) -> Lowered:
    lowered = importlib.import_module(f"search_space.sketches.{name}.lower").lower(w, card, knobs)
    assert isinstance(lowered, Lowered)
    return lowered


def check_cubin(name: str, w: GemmWorkload, card: Target, knobs: Knobs) -> None:
    try:
        cuda.find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    built = cuda.build_cubin(lower(name, w, card, knobs), card, timeout_s=240)
    declared = get_sketch(name).resources(w, card, knobs)
    assert built.code.startswith(b"\x7fELF")
    (report,) = built.reports
    assert report.symbol == "main_kernel"
    assert report.registers <= declared.registers
    assert (report.spill_bytes, report.stack_bytes, report.shared_bytes) == (0, 0, 0)
    assert built.launch["kernels"][0]["shared_bytes"] == declared.shared_bytes


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_operands_whose_contiguous_axis_is_not_k_are_transposed_by_ldmatrix(trans_a: bool, trans_b: bool) -> None:
    w = GemmWorkload.from_json({"m": 128, "n": 128, "k": 64, "dtype": "bf16", "trans_a": trans_a, "trans_b": trans_b})
    source = cuda.cuda_source(lower("cuda_gemm_mma", w, CARDS["sm_80"], _MMA), CARDS["sm_80"])
    kernel = source.split('extern "C" __global__')[-1]
    turned = sum("_trans_" in line for line in kernel.splitlines() if "ldmatrix" in line)
    plain = sum("ldmatrix" in line for line in kernel.splitlines()) - turned
    # Two steps of 16 in a stage; a warp's 64 x 64 tile takes four loads of each operand a step.
    assert (turned, plain) == (8 * (trans_a + (not trans_b)), 8 * ((not trans_a) + trans_b))
    assert "cp.async.cg" in source
    assert "wgmma" not in source


@pytest.mark.parametrize("edge", [EDGES[i] for i in QUICK], ids=lambda e: f"{e[0]}-{e[1]}")
def test_cubins_stay_within_what_is_declared(edge: tuple[str, str, dict[str, object], Knobs]) -> None:
    check_cubin(edge[0], *choose(*edge))


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: f"{e[0]}-{e[1]}")
def test_all_edges_stay_within_what_is_declared(edge: tuple[str, str, dict[str, object], Knobs]) -> None:
    check_cubin(edge[0], *choose(*edge))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_legal_choices_stay_within_what_is_declared(seed: int) -> None:
    rng = random.Random(seed)
    name, arch = rng.choice(("cuda_gemm_mma", "cuda_gemm_simt")), rng.choice(tuple(CARDS))
    data = rng.choice((ALIGNED, ODD, BATCH)) | ({"dtype": "fp32"} if name == "cuda_gemm_simt" else {})
    w, sketch = GemmWorkload.from_json(data), get_sketch(name)
    domain = sketch.knobs(w, CARDS[arch])
    for _ in range(5000):
        knobs = {k.name: rng.choice(k.values) for k in domain}
        if sketch.violated(w, CARDS[arch], knobs) is None:
            check_cubin(name, w, CARDS[arch], knobs)
            return
    raise AssertionError("no legal choice in 5000 draws")
