"""What this GPU can do at most, measured: dense products by type, and bytes per second of its memory.

Best of several short runs with torch's own kernels on random data (zeros would run at a higher clock).
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from search_space.target import Target
from tuner.roofs import Roofs

_RUNS, _PER_RUN = 6, 8
_HALF_EXTENT, _SINGLE_EXTENT = 8192, 4096
_MEMORY_BYTES = 4 << 30  # far beyond any L2
_MEMORY_SHARE = 16  # of the device's memory at most one part in so many, where that is less


def measure_gpu_roofs(target: Target) -> Roofs:
    """Takes about two seconds of the device alone. Types without a product in torch are left out."""
    torch.backends.cuda.matmul.allow_tf32 = False
    flops = {
        "bfloat16": _product_rate(_matmul(torch.bfloat16, _HALF_EXTENT), _HALF_EXTENT),
        "float16": _product_rate(_matmul(torch.float16, _HALF_EXTENT), _HALF_EXTENT),
        "float32": _product_rate(_matmul(torch.float32, _SINGLE_EXTENT), _SINGLE_EXTENT),
    }
    with contextlib.suppress(RuntimeError):  # before compute capability 8.9 there is none
        flops["float8_e4m3"] = _product_rate(_scaled_matmul(_HALF_EXTENT), _HALF_EXTENT)
    # Measured cold: nothing is charged at the cache's rate.
    return Roofs(flops_per_s=flops, memory_bytes_per_s=_memory_rate(target))


def _matmul(dtype: torch.dtype, extent: int) -> Callable[[], Any]:
    a, b = (torch.randn(extent, extent, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def _scaled_matmul(extent: int) -> Callable[[], Any]:
    a, b = (torch.randn(extent, extent, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _product_rate(call: Callable[[], Any], extent: int) -> float:
    return 2.0 * extent**3 / _best_s(call)


def _memory_rate(target: Target) -> float:
    """The better of copying (bytes read and written) and of reading alone."""
    count = min(_MEMORY_BYTES, target.memory_bytes // _MEMORY_SHARE or _MEMORY_BYTES) // 4
    source = torch.randn(count, device="cuda")
    copy = torch.empty_like(source)
    nbytes = float(source.nbytes)
    return max(2.0 * nbytes / _best_s(lambda: copy.copy_(source)), nbytes / _best_s(lambda: source.sum()))


def _best_s(call: Callable[[], Any]) -> float:
    """Seconds a call, by events round several back to back."""
    call()
    best = float("inf")
    for _ in range(_RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(_PER_RUN):
            call()
        end.record()
        end.synchronize()
        best = min(best, float(begin.elapsed_time(end)) * 1e-3 / _PER_RUN)
    return best
