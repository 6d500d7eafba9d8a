"""What this host is, read from files that can be laid out in a test."""

import os

import pytest

from search_space.environment import EnvironmentIdentity
from tuner.ports import MeasurePolicy
from workers import host

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD  EPYC 7763
flags\t\t: fpu sse4_2 avx avx2 fma f16c

processor\t: 1
model name\t: other
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
INTEL = {"flags": "avx avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16 sse4_2"}


def test_cpuinfo():
    info = host.cpu_info(EPYC)
    assert host.model_name(info) == "AMD EPYC 7763"
    assert host.llvm_features(info) == ("avx", "avx2", "f16c", "fma", "sse4.2")
    assert host.vector_bits(host.llvm_features(info)) == 256
    arm = host.cpu_info(ARM)
    assert host.llvm_features(arm) == ("bf16", "neon", "sve")
    assert host.vector_bits(host.llvm_features(arm)) == 128
    assert host.model_name(arm).endswith("0x41/0xd4f")
    assert host.kernel_names(host.llvm_features(info)) == ["avx", "avx2", "f16c", "fma", "sse4_2"]
    intel = host.llvm_features(INTEL)
    assert set(host.kernel_names(intel)) == set(INTEL["flags"].split())
    assert {"avx512bf16", "amx-bf16", "amx-tile"} <= set(intel)
    assert host.vector_bits(intel) == 512


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (host.llvm_features(INTEL), "x86-64-v4"),
        (("avx2", "sse4.2"), "x86-64-v3"),
        (("sse4.2",), "x86-64-v2"),
        ((), "x86-64"),
    ],
)
def test_a_hidden_instruction_set_gives_a_generic_level(features, level):
    assert host.x86_level(features) == level


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_caches(tmp_path):
    for index, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M")]):
        folder = tmp_path / f"cpu3/cache/index{index}"
        write(folder / "level", f"{level}\n")
        write(folder / "type", f"{kind}\n")
        write(folder / "size", f"{size}\n")
    assert host.cache_sizes(tmp_path, 3) == {1: 48 << 10, 2: 2 << 20}
    assert host.cache_sizes(tmp_path, 4) == {}


def test_hyper_threads_share_a_core(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    assert host.physical_cores(tmp_path, {0, 1, 2, 3}) == 2
    assert host.physical_cores(tmp_path, {0, 2}) == 1
    assert host.physical_cores(tmp_path, {7, 8}) == 2  # nothing known about them


def test_quota_of_either_cgroup_version(tmp_path):
    write(tmp_path / "a/b/cpu.max", "max 100000\n")
    write(tmp_path / "a/cpu.max", "150000 100000\n")
    assert host.cpu_quota(tmp_path, {"": "/a/b"}) == 1.5
    assert host.cpu_quota(tmp_path, {"": "/"}) is None
    write(tmp_path / "cpu/c/cpu.cfs_quota_us", "400000\n")
    write(tmp_path / "cpu/c/cpu.cfs_period_us", "100000\n")
    assert host.cpu_quota(tmp_path, {"cpu": "/c"}) == 4.0
    write(tmp_path / "cpu/c/cpu.cfs_quota_us", "-1\n")
    assert host.cpu_quota(tmp_path, {"cpu": "/c"}) is None


def test_memory_limits(tmp_path):
    write(tmp_path / "a/memory.max", "1048576\n")
    write(tmp_path / "memory.max", "max\n")
    write(tmp_path / "memory/c/memory.limit_in_bytes", "4096\n")
    assert host.memory_limits(tmp_path, {"": "/a", "memory": "/c"}) == [1048576, 4096]


def test_this_host():
    target = host.host_target()
    assert target.kind == "cpu"
    assert 1 <= target.cores <= len(os.sched_getaffinity(0))
    assert target.l1_bytes >= 8 << 10
    assert target.l2_bytes >= target.l1_bytes
    assert target.memory_bytes > 64 << 20
    assert type(target).from_json(target.to_json()) == target
    identity = host.host_identity(MeasurePolicy())
    assert identity.policy == "v1/warm"
    assert identity.model == target.model
    assert identity.tvm
    assert EnvironmentIdentity.from_json(identity.to_json()) == identity
