"""What this CPU can do at most, measured: multiply-adds per second, and bytes per second from memory and last cache.

Best of several short runs on all cores of the target: a roof is what the machine can do undisturbed.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from search_space.lowered import Lowered
from search_space.target import Target
from tilewright.runtime import Artifact, load
from tilewright.runtime.artifact import SCHEMA
from tilewright.runtime.cpu import CpuKernel
from tuner.roofs import Roofs
from workers.build.cpu import compile_cpu

# Each program runs in several spells with a rest between them: on a busy host the threads of one spell can share a
# core from its first call to its last, which reads as half the peak; after a rest they are placed anew.
_SPELLS, _SPELL_S, _REST_S = 8, 0.08, 0.03
_ROUNDS = 250_000  # of the multiply-add loop: about a millisecond, so that some runs escape other processes
_MEMORY_FACTOR = 4  # the array that is read from memory, in last-level caches
_MEMORY_LEAST, _MEMORY_MOST = 128 << 20, 1 << 30


@dataclass(frozen=True)
class _Program:
    """A loaded program of the form main(X, Y)."""

    kernel: CpuKernel
    x: "np.ndarray[Any, Any]"
    y: "np.ndarray[Any, Any]"

    def launcher(self) -> Callable[[], None]:
        return self.kernel.launcher([self.x], [self.y])


@functools.cache
def measure_roofs(target: Target) -> Roofs:
    """Takes about three seconds of the whole machine, once in a process. Raises BuildError without a compiler.

    Types that the CPU only widens (float16; bfloat16 without AVX512-BF16) have float32's peak.
    """
    single = _multiply_add_rate(target)
    pairs = _dot_pairs_rate(target) if "avx512bf16" in target.features and target.vector_bits >= 512 else single
    large = min(_MEMORY_MOST, max(_MEMORY_LEAST, _MEMORY_FACTOR * target.l3_bytes))
    # Larger than the private caches together, and well inside the shared one.
    small = max(target.l3_bytes // 4, min(target.l3_bytes // 2, 4 * target.cores * target.l2_bytes))
    return Roofs(
        flops_per_s={"float32": single, "float16": single, "bfloat16": pairs},
        memory_bytes_per_s=_read_rate(target, large),
        cache_bytes_per_s=_read_rate(target, small) if target.l3_bytes else 0.0,
        cache_bytes=target.l3_bytes,
    )


def accumulators(target: Target) -> int:
    """Enough independent sums to fill two to four pipes of latency four, and registers left for the operands."""
    return 12 if target.vector_bits == 256 else 24


def _multiply_add_rate(target: Target) -> float:
    from workers.roof_programs import multiply_add

    lanes, vectors = max(4, target.vector_bits // 32), accumulators(target)
    module = multiply_add(target.cores, vectors, lanes, _ROUNDS)
    x = np.stack([np.full(lanes, 0.5, np.float32), np.ones(lanes, np.float32)])
    program = _load(module, target, x, "float32", (target.cores, lanes))
    return 2.0 * target.cores * vectors * lanes * _ROUNDS / _best_s(program.launcher())


def _dot_pairs_rate(target: Target) -> float:
    from workers.roof_programs import dot_pairs

    vectors = accumulators(target)
    module = dot_pairs(target.cores, vectors, _ROUNDS)
    x = np.full((2, 16), 0x3C003C00, np.int32)  # pairs of small bfloat16 numbers (2^-7)
    program = _load(module, target, x, "int32", (target.cores, 16))
    return 4.0 * 16 * target.cores * vectors * _ROUNDS / _best_s(program.launcher())


def _read_rate(target: Target, nbytes: int) -> float:
    from workers.roof_programs import read, read_bytes, rows_for

    lanes = max(4, target.vector_bits // 32)
    rows = rows_for(nbytes, target.cores, lanes)
    x = np.ones((target.cores, rows, read_bytes(1, 1, 1) // 4, lanes), np.float32)
    program = _load(read(target.cores, rows, lanes), target, x, "float32", (target.cores, lanes))
    seconds = _best_s(program.launcher())
    if not np.all(program.y == rows * x.shape[2]) and rows * x.shape[2] < 1 << 24:
        raise RuntimeError("the reading program returned a wrong sum")
    return read_bytes(target.cores, rows, lanes) / seconds


def _load(module: Any, target: Target, x: "np.ndarray[Any, Any]", dtype: str, shape: tuple[int, ...]) -> _Program:
    compiled = compile_cpu(Lowered(module), target)
    manifest: dict[str, object] = {
        "schema": SCHEMA,
        "kind": compiled.kind,
        "workload": {"op": "roof"},
        "candidate": {},
        "target": target.to_json(),
        "inputs": [{"name": "x", "shape": list(x.shape), "dtype": "float32"}],
        "outputs": [{"name": "y", "shape": list(shape), "dtype": "float32"}],
        "launch": dict(compiled.launch),
    }
    kernel = load(Artifact(manifest, compiled.files))
    assert isinstance(kernel, CpuKernel)
    kernel.set_threads(target.cores)
    # The loader knows no integers: the pairs travel as float32 bit patterns.
    return _Program(kernel, x.view(np.float32) if dtype != "float32" else x, np.zeros(shape, np.float32))


def _best_s(launch: Callable[[], None]) -> float:
    """Seconds of one call, the least over all spells (each at least one call)."""
    launch()
    best = float("inf")
    for _ in range(_SPELLS):
        time.sleep(_REST_S)
        start = end = time.perf_counter()
        while end - start < _SPELL_S:
            before = end
            launch()
            end = time.perf_counter()
            best = min(best, end - before)
    return best
