"""The roof programs compute what they claim, in the instructions they claim; the roofs are consistent."""

import dataclasses

import numpy as np
import pytest

from search_space.lowered import Lowered
from search_space.target import Target
from search_space.workload import parse_workload
from workers import roof_programs, roofs
from workers.build.cpu import compile_cpu
from workers.host import host_target

AVX512 = Target("cpu", "sapphirerapids", "other", 2, 512, features=("avx2", "avx512f", "avx512bf16"))


def run(module, target, x, shape):
    program = roofs._load(module, target, x, "float32", shape)
    program.launcher()()
    return program.y


def test_the_programs_compute_what_they_claim():
    target = host_target()
    x = np.stack([np.full(8, 0.5, np.float32), np.ones(8, np.float32)])
    y = run(roof_programs.multiply_add(2, 3, 8, 2), target, x, (2, 8))
    # From i + 1, two rounds of s / 2 + 1, over three sums.
    assert np.array_equal(y, np.full((2, 8), sum(((i + 1) / 2 + 1) / 2 + 1 for i in range(3))))
    data = np.random.default_rng(0).integers(0, 9, (2, 5, 8, 4)).astype(np.float32)
    y = run(roof_programs.read(2, 5, 4), target, data, (2, 4))
    assert np.array_equal(y, data.sum((1, 2)))
    assert roof_programs.read_bytes(2, 5, 4) == data.nbytes
    assert roof_programs.rows_for(data.nbytes, 2, 4) == 5


def test_the_loops_stay_in_registers():
    """Compiled, not run, for a processor that need not be this one."""
    vectors = roofs.accumulators(AVX512)
    pairs = compile_cpu(Lowered(roof_programs.dot_pairs(2, vectors, 1000)), AVX512).assembly
    assert pairs.count("vdpbf16ps") >= vectors
    fma = compile_cpu(Lowered(roof_programs.multiply_add(2, vectors, 16, 1000)), AVX512).assembly
    assert sum("vfmadd" in line and "zmm" in line for line in fma.splitlines()) >= vectors
    for text in (pairs, fma):
        arithmetic = [x for x in text.splitlines() if "vfmadd" in x or "vdpbf16ps" in x]
        assert not any("(%rsp)" in x for x in arithmetic)


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(roofs, "_SPELL_S", 0.01)
    monkeypatch.setattr(roofs, "_MEMORY_LEAST", 16 << 20)
    target = dataclasses.replace(host_target(), l3_bytes=min(host_target().l3_bytes, 4 << 20))
    return roofs.measure_roofs(target)


def test_roofs_of_this_machine(measured):
    peak = measured.flops_per_s
    assert set(peak) == {"float32", "float16", "bfloat16"}
    assert min(peak.values()) > 1e8
    assert peak["float16"] == peak["float32"]  # only widened on a CPU
    assert measured.memory_bytes_per_s > 1e7
    assert type(measured).from_json(measured.to_json()) == measured
    workload = parse_workload({"op": "gemm", "m": 1024, "n": 1024, "k": 1024, "dtype": "float32"})
    seconds, bound = measured.time_s(workload)
    assert seconds >= workload.flops() / peak["float32"]
    assert bound in ("compute", "memory")
