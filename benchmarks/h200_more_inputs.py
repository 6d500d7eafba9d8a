"""Inputs and peers of the second H200 GEMM race (GEMV, float8, grouped)."""

import math
from collections.abc import Callable
from typing import Any

import torch

from search_space.gemm import SCALE_BLOCK, GemmWorkload
from workers.cuda_bench import Call, apply_epilogue
from workers.inputs import make_inputs, poison, torch_dtype
from workers.reference import group_rows
from workers.vendor_gemm_cuda import special_kernels

_MOST_SETS = 64
_LARGE_BYTES = 1 << 33
Tensors = dict[str, Any]


def make_sets(w: GemmWorkload, l2_bytes: int) -> tuple[list[Tensors], bool]:
    """(sets of inputs with an output, whether they are cold): copies of one random set in memory of their own, four
    times L2 together; at least two where that many fit the memory."""
    fewest = 2 if w.footprint_bytes() < _LARGE_BYTES else 1
    wanted = max(fewest, math.ceil(4 * l2_bytes / w.footprint_bytes())) if l2_bytes else 1
    count = min(_MOST_SETS, wanted)
    first = make_inputs(w, "random", "cuda")
    sets = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(count - 1))]
    for tensors in sets:
        tensors["c"] = poison(w.outputs()[0], "cuda")
    return sets, count * w.footprint_bytes() >= 2 * l2_bytes


def cancelling_set(w: GemmWorkload) -> tuple[Tensors, Any]:
    """(inputs, exact result in float32, NaN where nothing has to be written): the first half of k adds up to a large
    number that the second half takes away again, but for one last zero.

    Row i of A is all s_i, column j of B is t_j times (1, ..., 1, -1, ..., -1, 0) with s, t in {1, -1, 2}; scales are
    powers of two that depend on the block of n (and on the row) alone. The result is exact in every type, unless a
    partial sum was rounded to 16 bits or dropped.
    """
    half = w.k // 2
    pattern = torch.ones(w.k, device="cuda")
    pattern[half:] = -1.0
    pattern[-1] = 0.0
    choices = torch.tensor([1.0, -1.0, 2.0], device="cuda")
    rows = w.groups * w.m
    s = choices[torch.arange(rows, device="cuda") % 3]
    t = choices[torch.arange(w.n, device="cuda") // 7 % 3]
    a = s[:, None].expand(rows, w.k)
    b = pattern[:, None] * t[None, :]
    values = {
        "a": a.t() if w.trans_a else a,
        "b": b.t() if w.trans_b else b,
        "bias": torch.zeros(w.n, device="cuda"),
        **_group_values(w),
    }
    exact = float(pattern.sum()) * s[:, None] * t[None, :]
    if w.scales == "tensor":
        values |= {"a_scale": torch.full((1,), 0.5, device="cuda"), "b_scale": torch.full((1,), 4.0, device="cuda")}
        exact = exact * 2.0
    if w.scales == "block":
        blocks_k = -(-w.k // SCALE_BLOCK)
        of_row = torch.exp2((torch.arange(rows, device="cuda") % 5 - 2).float())
        of_block = torch.exp2((torch.arange(-(-w.n // SCALE_BLOCK), device="cuda") % 3 - 1).float())
        values |= {"a_scale": of_row.expand(blocks_k, rows), "b_scale": of_block[:, None].expand(-1, blocks_k)}
        exact = exact * of_row[:, None] * of_block.repeat_interleave(SCALE_BLOCK)[None, : w.n]
    inputs = {o.name: values[o.name].to(torch_dtype(o.dtype)).expand(o.shape).contiguous() for o in w.inputs()}
    return inputs, _only_group_rows(w, inputs, apply_epilogue(w.epilogue, exact))


def _group_values(w: GemmWorkload) -> Tensors:
    """One row more or less than a block has, none, all: sizes around what tiles are made of."""
    pattern = torch.tensor([w.m, 0, max(0, w.m - 1), min(1, w.m), w.m // 2], device="cuda")
    sizes = pattern[torch.arange(w.groups, device="cuda") % 5]
    return {"offsets": sizes.cumsum(0), "counts": sizes}


def _only_group_rows(w: GemmWorkload, inputs: Tensors, exact: Any) -> Any:
    if w.groups == 1:
        return exact.expand(w.outputs()[0].shape) if w.batch > 1 else exact
    kept = torch.full_like(exact, math.nan)
    for begin, end in group_rows(w, inputs):
        kept[begin:end] = exact[begin:end]
    return kept


def peers(w: GemmWorkload, sets: list[Tensors]) -> dict[str, list[Call]]:
    """name -> one call a set: what torch runs for this workload; beside float8 also the product in bfloat16."""
    special = special_kernels(w)
    found: dict[str, Callable[[Tensors], Call]] = {
        name: lambda t, bind=bind: bind([t[o.name] for o in w.inputs()], [t["c"]]) for name, bind in special.items()
    }
    if w.dtype_a == "float8_e4m3":
        found["cublas_bf16"] = _bfloat16(w, sets)
    elif not special:
        found["cublas"] = lambda t: _matmul(w, t)
    return {name: [make(t) for t in sets] for name, make in found.items()}


def _matmul(w: GemmWorkload, t: Tensors) -> Call:
    a = t["a"].transpose(-1, -2) if w.trans_a else t["a"]
    b = t["b"].transpose(-1, -2) if w.trans_b else t["b"]
    return lambda: torch.matmul(a, b, out=t["c"])


def _bfloat16(w: GemmWorkload, sets: list[Tensors]) -> Callable[[Tensors], Call]:
    """The same product in bfloat16, twice the bytes: what a user without float8 runs."""
    wide = {id(t): {name: t[name].to(torch.bfloat16) for name in ("a", "b")} for t in sets}
    return lambda t: _matmul(w, {**wide[id(t)], "c": t["c"]})
