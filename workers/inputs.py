"""The tensors a workload is checked and timed on: two recipes, both decided by the workload's key alone.

"random" is what users' data looks like to first order. "adversarial" is built to separate right kernels from fast ones:
for GEMM partial sums that grow large and cancel, which an accumulator of the input type cannot hold, and groups of
unequal size, some empty; for attention
large logits (naive softmax overflows), a constant sign of V (a 16-bit accumulator stalls), and, where the mask allows,
rows that see nothing.
"""

import dataclasses

import torch

from search_space.attention import AttentionWorkload
from search_space.gemm import GemmWorkload
from search_space.workload import Operand, Workload
from workers.reference import reference

RECIPES = ("random", "adversarial")
# Largest factor of the adversarial recipes: float16 must not overflow in one product (65504).
_GEMM_AMPLITUDE = 4.0
_LOGIT_AMPLITUDE = 40.0


def make_inputs(workload: Workload, recipe: str = "random", device: str = "cpu") -> dict[str, torch.Tensor]:
    """Operand name -> tensor of the workload's shape and dtype, contiguous on `device`.

    The same workload, recipe and kind of device always give the same values. ValueError for an unknown recipe.
    """
    if recipe not in RECIPES:
        raise ValueError(f"recipe: must be one of {', '.join(RECIPES)}, got {recipe!r}")
    rng = torch.Generator(device)
    rng.manual_seed((int(workload.key, 16) + RECIPES.index(recipe)) % (1 << 63))
    if isinstance(workload, GemmWorkload):
        values = _gemm_random(workload, rng) if recipe == "random" else _gemm_cancelling(workload, rng)
    elif isinstance(workload, AttentionWorkload):
        values = _attention_random(workload, rng) if recipe == "random" else _attention_extreme(workload, rng)
        if workload.pass_ == "backward":
            values |= _of_forward(workload, values)
            values["do"] = _normal(tuple(values["o"].shape), rng)
    else:
        raise ValueError(f"no input recipe for {workload.op}")
    return {o.name: values[o.name].to(torch_dtype(o.dtype)).contiguous() for o in workload.inputs()}


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype for a canonical name."""
    dtype = getattr(torch, "float8_e4m3fn" if name == "float8_e4m3" else name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def poisoned_outputs(workload: Workload, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Outputs full of NaN, so that an element that a kernel never writes cannot pass."""
    return {o.name: poison(o, device) for o in workload.outputs()}


def poison(operand: Operand, device: str = "cpu") -> torch.Tensor:
    return torch.full(operand.shape, float("nan"), device=device).to(torch_dtype(operand.dtype))


def _uniform(shape: tuple[int, ...], rng: torch.Generator, low: float, high: float) -> torch.Tensor:
    return torch.rand(shape, generator=rng, device=rng.device).mul_(high - low).add_(low)


def _normal(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def _gemm_random(workload: GemmWorkload, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Groups have m rows each, as `flops` counts them."""
    values = {o.name: _uniform(o.shape, rng, -1.0, 1.0) for o in workload.inputs() if o.name in ("a", "b", "bias")}
    size = torch.full((workload.groups,), workload.m, device=rng.device)
    return values | _scales(workload, rng) | _group_operand(workload, size)


def _scales(workload: GemmWorkload, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Positive, over two octaves; a wrong block is off by a factor."""
    names = ("a_scale", "b_scale")
    return {o.name: torch.exp2(_uniform(o.shape, rng, -1.0, 1.0)) for o in workload.inputs() if o.name in names}


def _group_operand(workload: GemmWorkload, sizes: torch.Tensor) -> dict[str, torch.Tensor]:
    if workload.grouping == "none":
        return {}
    if workload.grouping == "contiguous":
        return {"offsets": sizes.cumsum(0)}
    return {"counts": sizes}


def _uneven(workload: GemmWorkload, rng: torch.Generator) -> torch.Tensor:
    """Sizes [groups] of all kinds: most between 0 and m, every third none; contiguous ones may then be over m, with
    rows left over behind the last."""
    sizes = torch.randint(0, workload.m + 1, (workload.groups,), generator=rng, device=rng.device)
    sizes[::3] = 0
    if workload.grouping == "contiguous":
        sizes[1] += workload.m - 1  # the first group's share, but one row
    return sizes


def _gemm_cancelling(workload: GemmWorkload, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """The first half of k adds positive products, the second takes nearly the same away again."""
    shapes = {o.name: o.shape for o in workload.inputs()}
    a = _uniform(shapes["a"], rng, 0.0, _GEMM_AMPLITUDE)
    b = _uniform(shapes["b"], rng, 0.0, _GEMM_AMPLITUDE)
    # Views with k last, sharing the operands' memory.
    a_k = a.transpose(-1, -2) if workload.trans_a else a
    b_k = b if workload.trans_b else b.transpose(-1, -2)
    half = workload.k // 2
    if half:
        a_k[..., half : 2 * half] = a_k[..., :half]
        # The difference is rounded to the operand's type with b itself: what is left is small against the sums.
        noise = _uniform(tuple(b_k[..., :half].shape), rng, -1.0, 1.0)
        b_k[..., half : 2 * half] = -b_k[..., :half] + noise / 64
    values = {"a": a, "b": b}
    if "bias" in shapes:
        values["bias"] = _uniform(shapes["bias"], rng, -1.0, 1.0)
    return values | _scales(workload, rng) | _group_operand(workload, _uneven(workload, rng))


def _attention_random(workload: AttentionWorkload, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {o.name: _normal(o.shape, rng) for o in workload.inputs() if o.name in ("q", "k", "v")}


def _of_forward(workload: AttentionWorkload, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the forward pass leaves to the backward: o and lse, of the operands as they are rounded."""
    forward = dataclasses.replace(workload, pass_="forward", lse=True, deterministic=False)
    dtype = torch_dtype(workload.dtype)
    return dict(reference(forward, {name: values[name].to(dtype) for name in ("q", "k", "v")}).outputs)


def _attention_extreme(workload: AttentionWorkload, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Even query rows have logits of +-40 and more, odd ones have none at all (each visible key weighs the same);
    V is positive. Rows that see nothing come from the mask: seq_q > seq_kv under `causal`, or a window."""
    shapes = {o.name: o.shape for o in workload.inputs()}
    q, k = _normal(shapes["q"], rng), _normal(shapes["k"], rng)
    q *= _LOGIT_AMPLITUDE / (workload.softmax_scale * workload.head_dim**0.5)
    rows = q if workload.layout == "bhsd" else q.transpose(1, 2)
    rows[:, :, 1::2] = 0.0
    return {"q": q, "k": k, "v": _uniform(shapes["v"], rng, 0.5, 1.5)}
