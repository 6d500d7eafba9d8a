"""This host's CPU as a target, and the identity of what is measured on it."""

import functools
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tuner.ports import MeasurePolicy

_PROC = Path("/proc")
_SYS = Path("/sys")
# Kernel's name of an instruction set -> LLVM's, for those that sketches ask about.
_FEATURES = {
    "sse4_2": "sse4.2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vnni": "avx512vnni",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "sve": "sve",
    "bf16": "bf16",
    "i8mm": "i8mm",
}
_ASK_TIMEOUT_S = 300  # importing TVM takes seconds, on a busy machine many
_ASK_LLVM = """
import json, tvm
from tvm.target import codegen
name = codegen.llvm_get_system_cpu()
features = codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": name}))
print(json.dumps([str(name), int(codegen.llvm_version_major()), [str(f) for f in features]]))
"""
# Generic levels of the x86-64 psABI, best first, with an instruction set that each of them needs and the next lacks.
_X86_LEVELS = (("x86-64-v4", "avx512vl"), ("x86-64-v3", "avx2"), ("x86-64-v2", "sse4.2"), ("x86-64", ""))


@functools.cache
def host_target() -> Target:
    """The CPU of this host with what this process may use of it (affinity, cgroup limits). Imports no tvm."""
    info = cpu_info((_PROC / "cpuinfo").read_text())
    features = llvm_features(info)
    caches = cache_sizes(_SYS / "devices/system/cpu", min(os.sched_getaffinity(0)))
    return Target(
        kind="cpu",
        arch=_llvm_name(features),
        model=model_name(info),
        cores=usable_cores(),
        vector_bits=vector_bits(features),
        l1_bytes=caches.get(1, 32 << 10),
        l2_bytes=caches.get(2, 512 << 10),
        l3_bytes=caches.get(3, 0),
        memory_bytes=memory_bytes(),
        features=features,
    )


def host_identity(policy: MeasurePolicy, target: Target | None = None) -> EnvironmentIdentity:
    """What a measurement taken here under `policy` holds for."""
    here = target or host_target()
    return EnvironmentIdentity(
        kind="cpu",
        model=here.model,
        arch=here.arch,
        cores=here.cores,
        driver=system_name(),
        cuda="",
        tvm=metadata.version("apache-tvm"),
        compiler=ask_llvm().version,
        policy=f"{policy.version}/{policy.cache}",
    )


def system_name() -> str:
    """Kernel (major.minor) and C library."""
    kernel = ".".join(platform.release().split(".")[:2])
    library, version = platform.libc_ver()
    return f"{platform.system()} {kernel}, {library or 'libc'} {version}".strip()


# --- what the processor is ---


def cpu_info(text: str) -> dict[str, str]:
    """The first processor of /proc/cpuinfo, keys in lower case."""
    first = text.split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip().lower(): value.strip() for key, value in pairs}


def llvm_features(info: Mapping[str, str]) -> tuple[str, ...]:
    """Instruction sets that the kernel shows to processes, by LLVM's names, sorted."""
    flags = set((info.get("flags") or info.get("features") or "").split())
    return tuple(sorted(llvm for kernel, llvm in _FEATURES.items() if kernel in flags))


def kernel_names(features: Sequence[str]) -> list[str]:
    """The same instruction sets by the kernel's names, as /proc/cpuinfo shows them where an artifact is loaded."""
    return sorted(kernel for kernel, llvm in _FEATURES.items() if llvm in features)


def vector_bits(features: Sequence[str]) -> int:
    if "avx512f" in features:
        return 512
    return 256 if "avx2" in features else 128


def model_name(info: Mapping[str, str]) -> str:
    if name := info.get("model name"):
        return re.sub(r"\s+", " ", name)
    if "cpu part" in info:  # ARM
        return f"{platform.machine()} {info.get('cpu implementer', '')}/{info['cpu part']}"
    return platform.machine()


def _llvm_name(features: Sequence[str]) -> str:
    """LLVM's name of the processor, or a generic level where a hypervisor hides some of what that name implies."""
    llvm = ask_llvm()
    if platform.machine() not in ("x86_64", "AMD64"):
        return llvm.name
    hidden = (set(llvm.features) & set(_FEATURES.values())) - set(features)
    return x86_level(features) if hidden else llvm.name


@dataclass(frozen=True)
class Llvm:
    """What TVM's LLVM says: this processor's name, the instruction sets that the name implies, its own version."""

    name: str
    features: tuple[str, ...]
    version: str


@functools.cache
def ask_llvm() -> Llvm:
    """Asked in a process of its own: an actor that only needs the name should not hold TVM in memory.

    Raises RuntimeError with the first line that says why where TVM cannot be loaded.
    """
    command = [sys.executable, "-c", _ASK_LLVM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"TVM cannot be loaded: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    name, version, features = json.loads(done.stdout.splitlines()[-1])
    return Llvm(name, tuple(features), f"LLVM {version}")


def x86_level(features: Sequence[str]) -> str:
    """The highest generic x86-64 level that a processor with these instruction sets has."""
    return next(level for level, needed in _X86_LEVELS if not needed or needed in features)


def cache_sizes(root: Path, cpu: int) -> dict[int, int]:
    """Level -> bytes of the data or unified caches of processor `cpu`."""
    sizes: dict[int, int] = {}
    for index in sorted((root / f"cpu{cpu}/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = parse_size((index / "size").read_text())
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            sizes[level] = size
    return sizes


def parse_size(text: str) -> int:
    """``32K``, ``1M``, ``512``: bytes."""
    text = text.strip()
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * factor


# --- what this process may use of it ---


def usable_cores() -> int:
    """Physical cores among the processors that this process may run on, and no more than its cgroup's quota."""
    allowed = os.sched_getaffinity(0)
    cores = physical_cores(_SYS / "devices/system/cpu", allowed)
    quota = cpu_quota(_SYS / "fs/cgroup", _cgroup_paths())
    return max(1, min(cores, math.floor(quota))) if quota else cores


def physical_cores(root: Path, processors: set[int]) -> int:
    """Processors that share a core count once: two hyper-threads have one set of vector units."""
    cores = set()
    for cpu in processors:
        try:
            cores.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def cpu_quota(root: Path, paths: Mapping[str, str]) -> float | None:
    """CPUs that the cgroup (version 2 or 1) grants; None without a limit."""
    limits = []
    for folder in _upwards(root, paths.get("", "/")):
        quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        if quota != "max":
            limits.append(int(quota) / int(period or 100_000))
    for folder in _upwards(root / "cpu", paths.get("cpu", "/")):
        quota, period = _read(folder / "cpu.cfs_quota_us") or "-1", _read(folder / "cpu.cfs_period_us") or "100000"
        if int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_bytes() -> int:
    """Memory of the host, or the cgroup's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *memory_limits(_SYS / "fs/cgroup", _cgroup_paths())])


def memory_limits(root: Path, paths: Mapping[str, str]) -> list[int]:
    texts = [_read(f / "memory.max") for f in _upwards(root, paths.get("", "/"))]
    texts += [_read(f / "memory.limit_in_bytes") for f in _upwards(root / "memory", paths.get("memory", "/"))]
    return [int(t) for t in texts if t is not None and t.isdigit()]


def _cgroup_paths() -> dict[str, str]:
    """Controller -> path of this process's group; the empty controller is version 2's."""
    paths: dict[str, str] = {}
    for line in (_read(_PROC / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _upwards(root: Path, path: str) -> list[Path]:
    """A group's folder and its parents': each of them may limit it. Inside a container the path may not exist."""
    parts = [p for p in path.split("/") if p]
    return [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
