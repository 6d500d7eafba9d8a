"""From a lowered program to an artifact: right, deterministic, cached, and total over what can go wrong."""

import os
import stat

import numpy as np
import pytest
import tiny_programs
import torch

import tilewright
from search_space.candidate import Candidate
from search_space.lowered import Lowered
from search_space.registry import generate_sketches
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.runtime import Artifact, digest_of
from tuner.outcome import Outcome
from workers.build import BuildCache, BuildError, BuildResult, BuildToolMissing, build, build_candidate, build_lowered
from workers.build import cpu as cpu_backend

M, N, K = 37, 53, 29
WORKLOAD = parse_workload({"op": "gemm", "m": M, "n": N, "k": K, "dtype": "float32"})
CANDIDATE = Candidate.of("by_hand", 1, {})


@pytest.fixture(scope="module")
def target():
    import tvm

    return Target("cpu", str(tvm.target.codegen.llvm_get_system_cpu()), "this", 2, 256)


@pytest.fixture(scope="module")
def artifact(target):
    return build_lowered(tiny_programs.gemm(M, N, K), WORKLOAD, target, CANDIDATE)


def operands():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(M, K, generator=rng), torch.randn(K, N, generator=rng)


def test_equal_programs_give_equal_bytes(artifact, target):
    again = build_lowered(tiny_programs.gemm(M, N, K), WORKLOAD, target, CANDIDATE)
    assert again.to_bytes() == artifact.to_bytes()
    other = build_lowered(tiny_programs.gemm(M, N, K + 1), WORKLOAD, target, CANDIDATE)
    assert other.digest != artifact.digest


def test_the_artifact_carries_script_and_assembly(artifact):
    script, assembly = artifact.text("kernel.tir.py"), artifact.text("kernel.s")
    assert "T.parallel(37)" in script
    assert "__tvm_ffi_main" in assembly
    assert artifact.manifest["workload"] == WORKLOAD.to_json()
    assert artifact.manifest["environment"]["tvm"]


def test_what_it_computes(artifact):
    kernel = tilewright.load(artifact.to_bytes(), artifact.digest)
    a, b = operands()
    exact = a.double() @ b.double()
    bound = 2 * K * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((kernel(a, b).double() - exact).abs() <= bound).all()
    got = kernel(a.numpy(), b.numpy())
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, kernel(a, b).numpy())


def test_operands_of_any_alignment_are_right(target):
    """A numpy array begins anywhere; an aligned vector load of it would end the process."""
    rows = 64
    workload = parse_workload({"op": "gemm", "m": rows, "n": 8, "k": 8, "dtype": "float32"})
    lowered = tiny_programs.vectorised_copy(rows)
    # The workload's own shapes are not those of this program: b is as long as a.
    artifact = build_lowered(lowered, workload, target, CANDIDATE)
    inputs = [{"name": x, "shape": [rows, 8], "dtype": "float32"} for x in "ab"]
    kernel = tilewright.load(Artifact({**artifact.manifest, "inputs": inputs}, artifact.files))
    for shift in range(1, 16):
        a, b, c = (torch.zeros(rows * 8 + 64)[i + shift :][: rows * 8].view(rows, 8) for i in (0, 1, 2))
        a += 1
        b += torch.arange(8)
        kernel(a, b, out=c)
        assert torch.equal(c, a + b)


def test_prepack(target):
    artifact = build_lowered(tiny_programs.gemm_prepacked(M, N, K), WORKLOAD, target, CANDIDATE)
    kernel = tilewright.load(artifact.to_bytes())
    assert kernel.prepacked == ("b",)
    a, b = operands()
    packed = kernel.prepack(b)
    assert packed.nbytes == 4 * N * K
    b_before = b.clone()
    b.zero_()  # packed means: the original is no longer read
    assert torch.allclose(kernel(a, packed), a @ b_before, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match=r"b: must be packed ahead"):
        kernel(a, b)
    other = tilewright.load(build_lowered(tiny_programs.gemm(M, N, K), WORKLOAD, target, CANDIDATE))
    with pytest.raises(ValueError, match="operand"):
        other.prepack(b)


def test_a_candidate_that_cannot_be_lowered_is_a_value(target):
    for candidate, message in (
        (Candidate.of("no_such_sketch", 1, {}), "no sketch named 'no_such_sketch'"),
        (Candidate.of("../sketch", 1, {}), "no sketch named"),
    ):
        result = build_candidate(WORKLOAD, target, candidate)
        assert result.outcome is Outcome.LOWER_ERROR
        assert message in result.error
        assert result.artifact is None


def test_a_program_that_the_compiler_refuses_is_a_build_error(target):
    from tvm.ir import IRModule
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
        T.func_attr({"global_symbol": "main"})
        for i in T.thread_binding(8, "threadIdx.x"):
            C[i] = A[i]

    with pytest.raises(BuildError) as caught:
        build_lowered(Lowered(IRModule({"main": main})), WORKLOAD, target, CANDIDATE)
    assert str(caught.value)


def test_a_program_that_spills_is_rejected_before_it_runs(target):
    from workers.roof_programs import multiply_add

    large = parse_workload({"op": "gemm", "m": 512, "n": 512, "k": 512, "dtype": "float32"})
    spaces = generate_sketches(large, target)
    spills = Lowered(multiply_add(2, 100, target.vector_bits // 32, 1000))  # 100 sums in 16 or 32 registers
    built = build_lowered(spills, large, target, CANDIDATE)
    tile = Candidate.of(spaces[-1].sketch.name, 1, {})
    with pytest.raises(BuildError, match=r"^rejected before running: the hot loop spills"):
        build.reject_hopeless(built, large, target, tile)
    # The sketch of last resort, and small work, are always given their run.
    build.reject_hopeless(built, large, target, Candidate.of(spaces[0].sketch.name, 1, {}))
    build.reject_hopeless(built, WORKLOAD, target, tile)


def test_an_undefined_symbol_never_becomes_an_artifact(target, monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'ld: cannot find -lm' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    with pytest.raises(BuildError, match="cannot find -lm"):
        build_lowered(tiny_programs.gemm(M, N, K), WORKLOAD, target, CANDIDATE)


def test_a_missing_compiler_is_named(target, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildToolMissing, match="apt-get install gcc"):
        build_lowered(tiny_programs.gemm(M, N, K), WORKLOAD, target, CANDIDATE)


def test_a_target_without_a_compiler(artifact):
    nowhere = Target("quantum", "", "none", 1)
    result = build_candidate(WORKLOAD, nowhere, CANDIDATE)
    assert result.outcome is Outcome.BUILD_ERROR
    assert "quantum" in result.error


def test_first_message_is_the_cause():
    cause = ValueError("the knob is bad\n  more")
    error = RuntimeError("Traceback (most recent call last)")
    error.__cause__ = cause
    assert build.first_message(error) == "ValueError: the knob is bad"


def test_cache_keeps_what_is_whole(artifact, tmp_path):
    cache = BuildCache(tmp_path)
    data = artifact.to_bytes()
    assert cache.get("key") is None
    cache.put("key", data)
    assert cache.get("key") == data
    assert cache.get("other key") is None
    (entry,) = (p for p in tmp_path.rglob("*") if p.is_file())
    entry.write_bytes(data[:-40])
    assert cache.get("key") is None
    assert not entry.exists()


def test_result_round_trip(artifact):
    data = artifact.to_bytes()
    result = BuildResult(Outcome.OK, data, digest_of(data), build_secs=0.5)
    assert BuildResult.from_json(result.to_json(), data) == result
    failed = BuildResult(Outcome.BUILD_TIMEOUT, error="too slow", build_secs=2.0)
    assert BuildResult.from_json(failed.to_json(), b"") == failed
    with pytest.raises(ValueError, match="OK"):
        BuildResult(Outcome.OK)


def test_shim_compiles_without_warnings(tmp_path):
    import subprocess

    flags = ["-Wall", "-Wextra", "-Werror", *cpu_backend._CFLAGS]
    command = [cpu_backend.find_compiler(), *flags, "-c", str(cpu_backend.SHIM), "-o", str(tmp_path / "shim.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
