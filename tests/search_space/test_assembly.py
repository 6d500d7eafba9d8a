"""The static look at assembly tells a good register tile from one that spills, on real compiler output."""

import importlib
import platform

import pytest
import tvm

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowering.assembly import AsmReport, inspect_assembly
from search_space.lowering.target import llvm_target
from search_space.target import Target

AVX2 = Target("cpu", "znver3", "any", 2, 256, features=("avx2", "f16c"))
AVX512 = Target("cpu", "znver4", "any", 2, 512, features=("avx512f",))
KNOBS: Knobs = {"kc": 512, "nb": 1, "m_chunks": 1, "n_inner": True, "pack_a": "none", "pack_b": "block", "ku": 1}
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64 processors")


def report(target: Target, mr: int, nv: int) -> AsmReport:
    workload = GemmWorkload(512, 512, 512, "float32", "float32", "float32")
    lowered = importlib.import_module("search_space.sketches.cpu_gemm_packed.lower").lower(
        workload, target, {**KNOBS, "mr": mr, "nv": nv}
    )
    built = tvm.compile(lowered.module, target=llvm_target(target))
    return inspect_assembly(built.mod.inspect_source("asm"), target.vector_bits)


@X86
@pytest.mark.parametrize(("target", "mr", "nv"), [(AVX2, 6, 2), (AVX2, 4, 3), (AVX512, 8, 2), (AVX512, 12, 2)])
def test_a_tile_that_fits_stays_in_registers(target: Target, mr: int, nv: int) -> None:
    seen = report(target, mr, nv)
    assert seen.hopeless is None
    assert seen.fma % (mr * nv) == 0
    assert seen.vector_bits == target.vector_bits
    assert (seen.narrow, seen.stack) == (0, 0)
    assert 1.0 < seen.instructions_per_fma < 2.5


@X86
@pytest.mark.parametrize(("mr", "nv"), [(8, 2), (6, 3)])
def test_a_tile_beyond_the_register_file_is_hopeless(mr: int, nv: int) -> None:
    seen = report(AVX2, mr, nv)
    assert seen.stack > 0
    assert seen.hopeless is not None
    assert "spills" in seen.hopeless


def test_code_without_multiply_adds_is_not_judged() -> None:
    seen = inspect_assembly("main:\n.L1:\n\taddq $1, %rax\n\tjne .L1\n\tretq\n", 256)
    assert (seen.fma, seen.hopeless) == (0, None)


def test_arm_loops_are_read_too() -> None:
    body = "\n".join(f"\tfmla\tv{i}.4s, v16.4s, v17.s[0]" for i in range(8))
    seen = inspect_assembly(f"main:\n.LBB0_1:\n\tldr\tq16, [x0], #16\n{body}\n\tb.ne\t.LBB0_1\n\tret\n", 128)
    assert (seen.fma, seen.vector_bits, seen.stack, seen.hopeless) == (8, 128, 0, None)
    spilled = body.replace("\n", "\n\tstr\tq3, [sp, #16]\n\tldr\tq4, [sp, #32]\n")
    assert inspect_assembly(f".LBB0_1:\n{spilled}\n\tb.ne\t.LBB0_1\n", 128).hopeless is not None
