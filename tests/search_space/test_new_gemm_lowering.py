"""GEMV, float8 and grouped GEMM kernels through TVM and nvcc, without a GPU: cubins stay within what is declared."""

import importlib
import re

import pytest

from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.hopper.gemm_space import most_stages
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.registry import get_sketch
from search_space.target import Target
from workers.build import cuda
from workers.build.result import BuildToolMissing

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
DECODE = {"m": 4, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True, "b_constant": True}
FLOAT8 = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp8", "trans_b": True, "scales": "tensor"}
EXPERTS = {"m": 256, "n": 4096, "k": 7168, "dtype": "bf16", "trans_b": True, "groups": 32, "grouping": "contiguous"}
_ROWS: Knobs = {"warps": 8, "split": 4, "rows": 2, "unroll": 4, "dependent": False}
_COLUMNS: Knobs = {"warps": 16, "lanes": 4, "unroll": 8, "dependent": False}
_TILE: Knobs = {
    "block_m": 128, "block_n": 128, "slabs": 1, "stages": 2, "consumers": 2, "schedule": "cooperative", "cluster_m": 1,
    "cluster_n": 1, "store": "tma", "group": 8, "by_n": False, "persistent": True, "promote": False, "overlap": False,
}  # fmt: skip
_SKINNY: Knobs = {
    "pad_m": 16, "rows": 64, "slabs": 2, "stages": 2, "consumers": 1, "split": 2, "blocks_per_sm": 1, "red_buffers": 2,
    "dependent": False,
}  # fmt: skip
Edge = tuple[str, dict[str, object], Knobs, Knobs]
# (sketch, workload, the plain choice, knobs that differ): the widest, narrowest and most crowded points.
EDGES: tuple[Edge, ...] = (
    ("cuda_gemm_gemv", DECODE, _ROWS, {"rows": 8, "unroll": 2, "warps": 4, "split": 1, "dependent": True}),
    ("cuda_gemm_gemv", DECODE | {"m": 1, "k": 4097, "batch": 2, "epilogue": "bias+gelu"}, _ROWS, {"unroll": 8}),
    ("cuda_gemm_gemv", DECODE | {"trans_b": False, "dtype": "fp16"}, _COLUMNS, {"warps": 16, "unroll": 2}),
    ("cuda_gemm_gemv", DECODE | {"trans_b": False, "n": 4095}, _COLUMNS, {"lanes": 32}),
    ("cuda_gemm_fp8", FLOAT8, _TILE, {"block_n": 256, "cluster_m": 2}),
    ("cuda_gemm_fp8", FLOAT8 | {"scales": "block"}, _TILE, {"cluster_n": 2, "overlap": True}),
    ("cuda_gemm_fp8", FLOAT8 | {"scales": "block"}, _TILE, {"block_m": 256}),
    ("cuda_gemm_fp8", FLOAT8 | {"epilogue": "bias+silu"}, _TILE, {"block_n": 192, "promote": True}),
    ("cuda_gemm_fp8", FLOAT8 | {"n": 331}, _TILE, {"schedule": "pingpong", "store": "direct", "slabs": 2}),
    ("cuda_gemm_fp8", FLOAT8, _TILE, {"block_m": 64, "block_n": 48, "consumers": 1, "store": "rows"}),
    ("cuda_gemm_fp8_skinny", FLOAT8 | {"m": 16}, _SKINNY, {}),
    ("cuda_gemm_fp8_skinny", FLOAT8 | {"m": 64, "scales": "block"}, _SKINNY, {"pad_m": 64, "split": 8, "slabs": 4}),
    ("cuda_gemm_fp8_skinny", FLOAT8 | {"m": 8, "b_constant": True}, _SKINNY,
     {"pad_m": 8, "blocks_per_sm": 2, "split": 1, "dependent": True}),
    ("cuda_gemm_grouped", EXPERTS, _TILE, {"block_n": 256, "store": "rows", "cluster_m": 2}),
    ("cuda_gemm_grouped", EXPERTS | {"grouping": "masked", "dtype": "fp16"}, _TILE,
     {"store": "rows", "schedule": "pingpong"}),
    ("cuda_gemm_grouped", EXPERTS | {"n": 331, "m": 16}, _TILE, {"store": "direct", "block_m": 64, "consumers": 1}),
)  # fmt: skip
QUICK = (0, 11)


def choose(edge: Edge) -> tuple[GemmWorkload, Candidate]:
    """The edge with as many stages as shared memory holds."""
    name, data, plain, change = edge
    w, sketch = GemmWorkload.from_json(data), get_sketch(name)
    names = {k.name for k in sketch.knobs(w, H200)}
    knobs: Knobs | None = {k: v for k, v in (plain | change).items() if k in names}
    if w.scales == "block" and "promote" in names:
        knobs = {**(knobs or {}), "promote": True}
    if "stages" in names:
        knobs = most_stages(sketch, w, H200, knobs or {})
    assert knobs is not None, "an edge is a legal choice"
    assert sketch.violated(w, H200, knobs) is None
    return w, Candidate.of(name, sketch.version, knobs)


def lower(w: GemmWorkload, candidate: Candidate) -> Lowered:
    lowered = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower").lower(w, H200, candidate.knobs)
    assert isinstance(lowered, Lowered)
    return lowered


def check_source(edge: Edge) -> None:
    w, candidate = choose(edge)
    lowered = lower(w, candidate)
    source = cuda.cuda_source(lowered, H200)
    assert lowered.launch is not None
    (kernel,) = cuda.with_parameters(lowered.launch, source)["kernels"]
    names = set(kernel["parameters"])
    assert {"a_scale_ptr", "b_scale_ptr"} & names == ({"a_scale_ptr", "b_scale_ptr"} if w.scales != "none" else set())
    assert ("ends_ptr" in names) == (w.groups > 1)
    assert ("bias_ptr" in names) == (w.epilogue != "none")
    shapes = {int(n) for n in re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.f32", source)}
    if candidate.sketch == "cuda_gemm_gemv":
        assert not shapes, "no tensor cores"
    else:
        assert shapes == {candidate.knobs["pad_m" if candidate.sketch.endswith("skinny") else "block_n"]}
        assert ("k32.f32.e4m3.e4m3" in source) == (w.dtype_a == "float8_e4m3")


def check_cubin(edge: Edge) -> None:
    try:
        cuda.find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    w, candidate = choose(edge)
    built = cuda.build_cubin(lower(w, candidate), H200, timeout_s=240)
    declared = get_sketch(candidate.sketch).resources(w, H200, candidate.knobs)
    (report,) = built.reports
    assert not built.serialised
    assert report.registers <= declared.registers
    assert (report.spill_bytes, report.stack_bytes, report.shared_bytes) == (0, 0, 0)


@pytest.mark.parametrize("edge", [EDGES[i] for i in (1, 3, 9, 14)], ids=lambda e: e[0])
def test_every_sketch_lowers_to_cuda_source(edge: Edge) -> None:
    check_source(edge)


@pytest.mark.parametrize("edge", [EDGES[i] for i in QUICK], ids=lambda e: e[0])
def test_cubins_stay_within_what_is_declared(edge: Edge) -> None:
    check_cubin(edge)


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e[0])
def test_all_edges_stay_within_what_is_declared(edge: Edge) -> None:
    check_source(edge)
    check_cubin(edge)
