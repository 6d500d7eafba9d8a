"""The bfloat16 GEMM on pairs: right with the shifted form on any host, and the instruction where it is compiled for."""

import dataclasses
import platform
import random
from collections.abc import Callable

import pytest
import tvm

from search_space.gemm import EPILOGUES, GemmWorkload
from search_space.lowering.assembly import inspect_assembly
from search_space.lowering.target import llvm_target
from search_space.registry import generate_sketches
from search_space.sketches.cpu_gemm_bf16.lower import lower
from search_space.sketches.cpu_gemm_bf16.space import SKETCH
from search_space.target import Target

AVX512 = Target("cpu", "znver4", "any", 2, 512, 32 << 10, 1 << 20, 32 << 20, features=("avx512f", "avx512bf16"))


@pytest.mark.parametrize("seed", range(5))
def test_pairs_add_up(seed: int, cpu: Target, check: Callable[..., float]) -> None:
    rng = random.Random(seed)
    workload = GemmWorkload(
        m=rng.choice((1, 5, 17, 33)),
        n=rng.choice((16, 31, 64)),
        k=rng.choice((1, 2, 9, 64, 127)),
        dtype_a="bfloat16",
        dtype_b="bfloat16",
        dtype_out=rng.choice(("bfloat16", "float32")),
        batch=rng.choice((1, 3)),
        trans_a=rng.random() < 0.5,
        trans_b=rng.random() < 0.5,
        epilogue=rng.choice(EPILOGUES),
    )
    points = ({k.name: rng.choice(k.values) for k in SKETCH.knobs(workload, cpu)} for _ in range(2000))
    knobs = next(p for p in points if SKETCH.violated(workload, cpu, p) is None)
    assert check(workload, "cpu_gemm_bf16", knobs, seed) <= 1.0, (workload, knobs)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64 processors")
def test_the_instruction_is_used_where_the_processor_has_it() -> None:
    workload = GemmWorkload(64, 64, 64, "bfloat16", "bfloat16", "bfloat16")
    knobs = SKETCH.seeds(workload, AVX512)[0]
    built = tvm.compile(lower(workload, AVX512, knobs).module, target=llvm_target(AVX512))
    asm = built.mod.inspect_source("asm")
    assert "vdpbf16ps" in asm
    assert not any("call" in line and "dot_pairs" in line for line in asm.splitlines())
    seen = inspect_assembly(asm, 512)
    assert (seen.vector_bits, seen.narrow, seen.hopeless) == (512, 0, None)


def test_it_is_offered_only_with_the_instruction() -> None:
    workload = GemmWorkload(64, 64, 64, "bfloat16", "bfloat16", "bfloat16")
    without = dataclasses.replace(AVX512, features=("avx512f",))
    assert "cpu_gemm_bf16" in {s.sketch.name for s in generate_sketches(workload, AVX512)}
    assert "cpu_gemm_bf16" not in {s.sketch.name for s in generate_sketches(workload, without)}
