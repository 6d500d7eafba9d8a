"""The operators as torch knows them: torch.compile traces them, autograd differentiates them.

Their implementation looks up the table at run time, so a compiled program need not be compiled again after `use`; a
shape that misses runs torch's kernel inside the operator, unfused with what is around it.
"""

from typing import Any

import torch

from tilewright.torch import attention, gemm

_NAMESPACE = "tilewright"
_DEVICES = ("CPU", "CUDA")


def _matmul(a: torch.Tensor, b: torch.Tensor, b_constant: bool = False) -> torch.Tensor:
    found = gemm.run_tuned(a, b, None, None, b_constant, False)
    return torch.matmul(a, b).contiguous() if found is None else found


def _fake_matmul(a: torch.Tensor, b: torch.Tensor, b_constant: bool = False) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"cannot multiply {list(a.shape)} and {list(b.shape)}")
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    wants_a, wants_b = ctx.needs_input_grad[:2]
    grad_a = gemm.matmul(grad, b.transpose(-1, -2)) if wants_a else None
    grad_b = _product_of_rows(a, grad, b.dim()) if wants_b else None
    return grad_a, grad_b, None


def _product_of_rows(a: torch.Tensor, grad: torch.Tensor, dims: int) -> torch.Tensor:
    """a^T grad; summed over the leading dimensions where b has none."""
    if dims == 2:
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return gemm.matmul(a.transpose(-1, -2), grad)


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    weight_constant: bool = False,
) -> torch.Tensor:
    found = gemm.run_tuned(x, weight, bias, activation, weight_constant, True)
    return gemm.torch_linear(x, weight, bias, activation).contiguous() if found is None else found


def _fake_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    weight_constant: bool = False,
) -> torch.Tensor:
    torch._check(x.shape[-1] == weight.shape[1], lambda: f"cannot multiply {list(x.shape)} and {list(weight.shape)}.T")
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    if inputs[3] is not None:
        raise RuntimeError("tilewright::linear has no gradient through an activation: call tilewright.torch.linear")
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.has_bias = inputs[2] is not None


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    grad_x = gemm.matmul(grad, weight) if wants_x else None
    grad_weight = _product_of_rows(grad, x, 2) if wants_weight else None
    rows = tuple(range(grad.dim() - 1))
    return grad_x, grad_weight, grad.sum(rows) if ctx.has_bias and wants_bias else None, None, None


def _fake_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_options: Any) -> torch.Tensor:
    torch._check(k.shape[-1] == q.shape[-1], lambda: f"q has head_dim {q.shape[-1]}, k {k.shape[-1]}")
    return attention.empty_like(q, v)


def _register(name: str, schema: str, run: Any, fake: Any, backward: Any = None, keep: Any = None) -> None:
    qualified = f"{_NAMESPACE}::{name}"
    torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, _DEVICES, run)
    torch.library.register_fake(qualified, fake)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=keep)


_register(
    "matmul",
    "(Tensor a, Tensor b, bool b_constant=False) -> Tensor",
    _matmul,
    _fake_matmul,
    _matmul_backward,
    _keep_operands,
)
_register(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, bool weight_constant=False) -> Tensor",
    _linear,
    _fake_linear,
    _linear_backward,
    _keep_linear,
)
_register(
    "attention",
    "(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, int window_left=-1, int window_right=-1, "
    "float softcap=0.0) -> Tensor",
    attention.run_any,
    _fake_attention,
)
