"""The host as a target, and a GEMM candidate built in this process and compared with float64."""

import importlib
from collections.abc import Callable

import pytest
import torch
import tvm

from search_space.dtypes import DTYPES
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowering.target import llvm_target
from search_space.target import Target

# c of |C - C64| <= c u (|A||B| + |bias|) + one rounding of the output type; k additions in any order stay far below
# it for the sizes here, accumulating in bfloat16 does not.
BOUND = 16.0


@pytest.fixture(scope="session")
def cpu() -> Target:
    """What the tests need of the host: its processor, and the widest vectors it runs."""
    arch = tvm.target.codegen.llvm_get_system_cpu()
    features = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": arch}))
    names = tuple(n for n in ("avx2", "f16c", "avx512f", "avx512bf16", "neon") if n in features)
    bits = 512 if "avx512f" in names else 256 if "avx2" in names else 128
    return Target("cpu", arch, "host", 2, bits, 32 << 10, 512 << 10, 32 << 20, features=names)


def gemm_inputs(workload: GemmWorkload, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(o.shape, getattr(torch, o.dtype)) for o in workload.inputs()]
    return [(torch.rand(shape, generator=generator) * 2 - 1).to(dtype) for shape, dtype in shapes]


def gemm_reference(workload: GemmWorkload, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, |A||B| + |bias|), both float64 [batch?, m, n]."""
    a, b, *bias = (t.double() for t in inputs)
    a = a.mT if workload.trans_a else a
    b = b.mT if workload.trans_b else b
    c, size = a @ b, a.abs() @ b.abs()
    if bias:
        c, size = c + bias[0], size + bias[0].abs()
    functional = torch.nn.functional
    activations = {"bias+gelu": functional.gelu, "bias+relu": functional.relu, "bias+silu": functional.silu}
    activation = activations.get(workload.epilogue)
    return (activation(c) if activation else c), size


def gemm_run(
    workload: GemmWorkload, target: Target, sketch: str, knobs: Knobs, inputs: list[torch.Tensor]
) -> torch.Tensor:
    lowered = importlib.import_module(f"search_space.sketches.{sketch}.lower").lower(workload, target, knobs)
    built = tvm.compile(lowered.module, target=llvm_target(target))
    arguments = list(inputs)
    names = [o.name for o in workload.inputs()]
    for pack in lowered.prepack:
        at = names.index(pack.operand)
        dtype = getattr(torch, str(knobs.get("packed_dtype", workload.dtype_b)))
        packed = torch.empty(pack.nbytes // dtype.itemsize, dtype=dtype)
        built[pack.symbol](arguments[at], packed)
        arguments[at] = packed
    (c,) = workload.outputs()
    out = torch.full(c.shape, float("nan"), dtype=getattr(torch, c.dtype))
    built["main"](*arguments, out)
    return out


def gemm_excess(workload: GemmWorkload, out: torch.Tensor, c: torch.Tensor, size: torch.Tensor) -> float:
    """max |C - C64| over its bound: right when at most 1; NaN counts as infinite."""
    rounding = DTYPES[workload.dtype_out].epsilon
    smallest = 2.0**-24 if workload.dtype_out == "float16" else 0.0  # float16's subnormals are that far apart
    bound = BOUND * DTYPES["float32"].epsilon * size + 1.01 * rounding * c.abs() + smallest + 1e-30
    excess = (out.double() - c).abs() / bound
    return float(torch.nan_to_num(excess, nan=float("inf")).max())


Check = Callable[..., float]


@pytest.fixture
def check(cpu: Target) -> Check:
    """check(workload, sketch, knobs, seed=0) -> excess over the bound on the host."""

    def run(workload: GemmWorkload, sketch: str, knobs: Knobs, seed: int = 0) -> float:
        inputs = gemm_inputs(workload, seed)
        kept = [t.clone() for t in inputs]
        out = gemm_run(workload, cpu, sketch, knobs, inputs)
        assert all(torch.equal(x, y) for x, y in zip(inputs, kept, strict=True)), "an input was changed"
        return gemm_excess(workload, out, *gemm_reference(workload, inputs))

    return run


@pytest.fixture
def run(cpu: Target) -> Callable[..., torch.Tensor]:
    """run(workload, sketch, knobs, inputs) -> C, built and called on the host."""

    def build_and_call(workload: GemmWorkload, sketch: str, knobs: Knobs, inputs: list[torch.Tensor]) -> torch.Tensor:
        return gemm_run(workload, cpu, sketch, knobs, inputs)

    return build_and_call
