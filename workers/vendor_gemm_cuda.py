"""torch's kernels for scaled float8 and for groups of rows on a GPU, with the workload's own operands."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from search_space.gemm import GemmWorkload
from workers.inputs import torch_dtype

Call = Callable[[], Any]  # returns the result, or None where it was written to the outputs
Bind = Callable[[Sequence[Any], Sequence[Any]], Call]


def special_kernels(w: GemmWorkload) -> dict[str, Bind]:
    """name -> what binds the operands; empty for workloads that torch.matmul does. Each does the product alone or
    refuses (RuntimeError from torch) when it is called. ValueError where torch has no kernel at all."""
    if w.groups > 1:
        if w.grouping == "masked" or w.scales != "none" or w.epilogue != "none":
            raise ValueError("torch groups contiguous rows only, without scales or an epilogue")
        return {"torch_grouped_mm": lambda inputs, _outputs: _grouped(w, inputs)}
    if w.dtype_a != "float8_e4m3":
        return {}
    if w.scales == "none" or w.epilogue != "none":
        raise ValueError("torch multiplies float8 with scales only, without an epilogue")
    # With block scales torch has no other accumulation than the promoted one.
    fast = w.scales == "tensor"
    found: dict[str, Bind] = {"torch_scaled_mm": lambda inputs, outputs: _scaled(w, inputs, outputs[0], fast=fast)}
    if fast:
        found["torch_scaled_mm_slow"] = lambda inputs, outputs: _scaled(w, inputs, outputs[0], fast=False)
    return found


def _scaled(w: GemmWorkload, inputs: Sequence[Any], out: Any, *, fast: bool) -> Call:
    """`fast`: sums stay in the tensor core (14 bits), else they are promoted every few hundred elements of k."""
    a, b, scale_a, scale_b = inputs[:4]
    a, b = (a.t() if w.trans_a else a), (b.t() if w.trans_b else b)
    # torch wants [m, k / 128] and [k / 128, n / 128], both with the first dimension contiguous: as ours are stored.
    scale_a, scale_b = (scale_a[0], scale_b[0]) if w.scales == "tensor" else (scale_a.t(), scale_b.t())
    dtype = torch_dtype(w.dtype_out)

    def product() -> None:
        torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast, out=out)

    return product


def _grouped(w: GemmWorkload, inputs: Sequence[Any]) -> Call:
    a, b, ends = inputs
    a, b = (a.t() if w.trans_a else a), (b.transpose(-1, -2) if w.trans_b else b)
    dtype = torch_dtype(w.dtype_out)
    return lambda: torch._grouped_mm(a, b, offs=ends, out_dtype=dtype)
