"""The Hopper GEMM sketches through TVM and nvcc, without a GPU: all lower, cubins stay within what is declared."""

import importlib
import random
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
DECODE = {"m": 16, "n": 6144, "k": 4096, "dtype": "bf16", "trans_b": True, "b_constant": True}
LARGE = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16", "trans_a": True}
SPLIT = {"m": 512, "n": 1536, "k": 7168, "dtype": "bf16", "trans_b": True, "b_constant": True, "epilogue": "bias+relu"}
ODD = {"m": 2047, "n": 2047, "k": 2047, "dtype": "bf16", "trans_b": True, "epilogue": "bias+gelu"}
BATCH = {"m": 100, "n": 200, "k": 96, "batch": 3, "dtype": "bf16", "epilogue": "bias+silu"}

_TILE: Knobs = {
    "block_m": 128, "block_n": 128, "block_k": 64, "stages": 2, "consumers": 2, "schedule": "cooperative",
    "cluster_m": 1, "cluster_n": 1, "store": "tma", "group": 8, "by_n": False, "persistent": True, "dependent": False,
    "dealing": "even", "split": 2, "turns": 1,
}  # fmt: skip
_SKINNY: Knobs = {
    "pad_m": 16, "rows": 64, "block_k": 128, "stages": 2, "consumers": 1, "split": 2, "share": 1, "blocks_per_sm": 1,
    "red_buffers": 2, "dependent": False,
}  # fmt: skip
# (sketch, workload, knobs that differ from the plain choice): the widest, narrowest and most crowded points.
EDGES: tuple[tuple[str, dict[str, object], Knobs], ...] = (
    ("cuda_gemm_ws", LARGE, {"block_m": 256, "block_n": 192}),
    ("cuda_gemm_ws", DECODE, {"block_m": 64, "block_n": 256, "schedule": "pingpong"}),
    ("cuda_gemm_ws", ODD | {"k": 2048}, {"block_n": 256, "store": "rows", "cluster_m": 2}),
    ("cuda_gemm_ws", BATCH, {"block_m": 64, "consumers": 1, "store": "direct"}),
    ("cuda_gemm_streamk", DECODE, {"block_m": 64, "block_n": 256, "consumers": 1, "dependent": True}),
    ("cuda_gemm_streamk", LARGE, {"block_n": 256, "cluster_n": 2}),
    ("cuda_gemm_skinny", DECODE, {"dependent": True}),
    ("cuda_gemm_skinny", DECODE | {"m": 128}, {"pad_m": 128, "split": 8, "block_k": 64}),
    ("cuda_gemm_skinny", DECODE, {"blocks_per_sm": 2, "split": 1, "red_buffers": 1}),
    ("cuda_gemm_splitk", SPLIT, {"block_n": 192, "dependent": True}),
    ("cuda_gemm_splitk", SPLIT, {"block_n": 224, "split": 4, "store": "direct", "cluster_m": 2}),
    ("cuda_gemm_splitk", LARGE, {"block_m": 256, "split": 4, "cluster_n": 2}),
    ("cuda_gemm_padded", ODD, {"block_n": 256, "cluster_m": 2, "store": "rows"}),
)
QUICK = (1, 6, 10)


def choose(name: str, data: dict[str, object], change: Knobs) -> tuple[GemmWorkload, Candidate]:
    """The edge with as many stages as shared memory holds."""
    w, sketch = GemmWorkload.from_json(data), get_sketch(name)
    plain = _SKINNY if name == "cuda_gemm_skinny" else _TILE
    names = {k.name for k in sketch.knobs(w, H200)}
    knobs = most_stages(sketch, w, H200, {k: v for k, v in (plain | change).items() if k in names})
    assert knobs is not None, "an edge is a legal choice"
    return w, Candidate.of(name, sketch.version, knobs)


def lower(w: GemmWorkload, candidate: Candidate) -> Lowered:
    module = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower")
    lowered = module.lower(w, H200, candidate.knobs)
    assert isinstance(lowered, Lowered)
    return lowered


def compile_or_skip(lowered: Lowered) -> cuda.Cubin:
    try:
        cuda.find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    return cuda.build_cubin(lowered, H200, timeout_s=240)


def check_cubin(w: GemmWorkload, candidate: Candidate) -> None:
    built = compile_or_skip(lower(w, candidate))
    declared = get_sketch(candidate.sketch).resources(w, H200, candidate.knobs)
    assert built.code.startswith(b"\x7fELF")
    assert not built.serialised
    reports = {r.symbol: r for r in built.reports}
    assert set(reports) == {k["symbol"] for k in built.launch["kernels"]}
    main = reports["main_kernel"]
    assert main.registers <= declared.registers
    assert (main.spill_bytes, main.stack_bytes, main.shared_bytes) == (0, 0, 0)


@pytest.mark.parametrize("edge", [EDGES[i] for i in (0, 3, 5, 6, 11, 12)], ids=lambda e: e[0])
def test_every_sketch_lowers_to_cuda_source(edge: tuple[str, dict[str, object], Knobs]) -> None:
    w, candidate = choose(*edge)
    lowered = lower(w, candidate)
    source = cuda.cuda_source(lowered, H200)
    assert lowered.launch is not None
    launch = cuda.with_parameters(lowered.launch, source)
    for kernel in launch["kernels"]:
        assert kernel["parameters"]
        assert set(kernel["parameters"]) == set(kernel["arguments"])
    assert source.count("wgmma.mma_async") > 0
    behind = 8 if candidate.sketch == "cuda_gemm_splitk" else 0  # its last barrier is addressed by a constant
    assert _pool_end(source) + behind == lowered.launch["kernels"][-1]["shared_bytes"]


def _pool_end(source: str) -> int:
    """Bytes of shared memory the kernel touches: behind its last barrier."""
    offsets = [int(n) for n in re.findall(r"uint64_t\*\)pool_buf_ptr\)\[\(.*? \+ (\d+)\)\]\)", source)]
    barriers = sorted(set(offsets))
    step = barriers[1] - barriers[0]
    return (barriers[-1] + (step if len(barriers) == 2 else 2)) * 8


@pytest.mark.parametrize("edge", [EDGES[i] for i in QUICK], ids=lambda e: e[0])
def test_cubins_stay_within_what_is_declared(edge: tuple[str, dict[str, object], Knobs]) -> None:
    check_cubin(*choose(*edge))


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e[0])
def test_all_edges_stay_within_what_is_declared(edge: tuple[str, dict[str, object], Knobs]) -> None:
    check_cubin(*choose(*edge))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_legal_choices_stay_within_what_is_declared(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(("cuda_gemm_ws", "cuda_gemm_streamk", "cuda_gemm_splitk", "cuda_gemm_skinny"))
    w, sketch = GemmWorkload.from_json(DECODE if name == "cuda_gemm_skinny" else LARGE), get_sketch(name)
    domain = sketch.knobs(w, H200)
    for _ in range(5000):
        knobs = {k.name: rng.choice(k.values) for k in domain}
        if sketch.violated(w, H200, knobs) is None:
            check_cubin(w, Candidate.of(name, sketch.version, knobs))
            return
    raise AssertionError("no legal choice in 5000 draws")


def test_a_missing_compiler_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.find_nvcc.cache_clear()
    monkeypatch.setattr(cuda.shutil, "which", lambda _name: None)
    monkeypatch.setattr(cuda.sysconfig, "get_paths", lambda: {"purelib": "/nonexistent"})
    try:
        with pytest.raises(BuildToolMissing, match="pip install nvidia-cuda-nvcc"):
            cuda.find_nvcc()
    finally:
        cuda.find_nvcc.cache_clear()


def test_the_ptxas_report_is_read_kernel_by_kernel() -> None:
    text = (
        "ptxas info    : Compiling entry function 'pad_kernel' for 'sm_90a'\n"
        "ptxas info    : Function properties for pad_kernel\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 0 barriers\n"
        "ptxas info    : Compiling entry function 'main_kernel' for 'sm_90a'\n"
        "ptxas info    : Function properties for main_kernel\n"
        "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n"
    )
    pad, main = cuda.read_report(text)
    assert (pad.symbol, pad.registers, pad.spill_bytes) == ("pad_kernel", 40, 0)
    assert (main.registers, main.stack_bytes, main.spill_bytes, main.shared_bytes) == (168, 16, 20, 1024)
