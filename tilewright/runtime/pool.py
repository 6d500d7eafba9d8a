"""The threads that CPU kernels run on: those that the process has already.

A parallel loop of an artifact calls one function with GOMP_parallel's signature. PyTorch's own OpenMP library is taken
where it is loaded or installed, so that kernels and PyTorch share one pool: a second pool would spin against the first.
"""

import concurrent.futures
import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
# GNU's, Intel's and LLVM's: all have GOMP_parallel.
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.(so|dylib)")


@dataclass(frozen=True)
class Pool:
    """`parallel` and `count` are C function pointers (`count` None: no say); `keep` owns them."""

    name: str
    parallel: Any
    count: Any
    keep: object


def cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def shared_pool() -> Pool:
    """OpenMP's pool where one can be found, else plain Python threads."""
    for find in (_loaded, _beside_torch, _system):
        path = find()
        if path is not None and (pool := _openmp(path)) is not None:
            return pool
    return _python_threads()


def _openmp(path: str) -> Pool | None:
    try:
        library = ctypes.CDLL(path)
        return Pool(path, library.GOMP_parallel, library.omp_get_max_threads, library)
    except (OSError, AttributeError):
        return None  # not loadable here, or without GNU's interface: the next place is looked at


def _loaded() -> str | None:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if _OPENMP.search(line))
    # PyTorch's wins where several were loaded.
    return min(paths, key=lambda p: "torch" not in p, default=None)


def _beside_torch() -> str | None:
    """The library of an installed, not yet imported PyTorch, so that importing it later finds the same pool."""
    if "torch" in sys.modules:
        return None
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    folders = (root / "lib", root.parent / "torch.libs")
    found = (str(p) for f in folders if f.is_dir() for p in sorted(f.iterdir()) if _OPENMP.search(str(p)))
    return next(found, None)


def _system() -> str | None:
    return ctypes.util.find_library("gomp") or ctypes.util.find_library("omp")


def _python_threads() -> Pool:
    executor = concurrent.futures.ThreadPoolExecutor(max(1, cores() - 1), "tilewright")
    busy = threading.local()

    def run(region: Callable[[int], None], data: int) -> None:
        busy.inside = True
        try:
            region(data)
        finally:
            busy.inside = False

    def parallel(fn: int, data: int, threads: int, _flags: int) -> None:
        region = REGION(fn)
        if getattr(busy, "inside", False):  # a loop inside a loop: the outer one has the threads
            region(data)
            return
        others = [executor.submit(run, region, data) for _ in range(threads - 1)]
        run(region, data)
        # One that never began has nothing left to do, since every task was taken from the shared counter.
        concurrent.futures.wait([f for f in others if not f.cancel()])

    callback = PARALLEL(parallel)
    return Pool("python threads", callback, None, callback)
