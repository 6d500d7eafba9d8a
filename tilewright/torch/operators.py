"""matmul, linear and attention: tuned where the shape was tuned, torch's own kernel otherwise."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

from tilewright.torch.table import TABLE, Key, key_of

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
}
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [..., m, k] @ b [k, n] or [batch, k, n], as torch.matmul. A transposed view counts as a transposed operand."""
    found = _find_gemm(a, b, None, None)
    return torch.matmul(a, b) if found is None else found


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """activation(x [..., k] @ weight [n, k].T + bias [n]); `activation`: None, gelu, relu or silu (with a bias)."""
    if activation is not None and activation not in _ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}")
    found = _find_gemm(x, weight.t(), bias, activation) if activation is None or bias is not None else None
    if found is not None:
        return found
    y = functional.linear(x, weight, bias)
    return y if activation is None else _ACTIVATIONS[activation](y)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
) -> torch.Tensor:
    """softmax(scale * q k^T + mask) v over q [batch, heads_q, seq_q, d], k and v [batch, heads_kv, seq_kv, d].

    Masks are aligned to the bottom right; -1 means an unlimited window. On a miss scaled_dot_product_attention runs,
    with an explicit mask wherever its own causal flag (aligned to the top left) would mean something else.
    """
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k and v must have 4 dimensions, got {q.dim()}, {k.dim()} and {v.dim()}")
    if window_left < -1 or window_right < -1:
        raise ValueError(f"a window must be -1 or more, got {window_left} and {window_right}")
    found = _find_attention(q, k, v, causal, scale, window_left, window_right)
    if found is not None:
        return found
    mask = _mask(q, k, causal, window_left, window_right)
    grouped = q.shape[1] != k.shape[1]
    plain = causal and mask is None
    out = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, plain, scale=scale, enable_gqa=grouped)
    # A row that sees no key is defined as 0; a softmax over nothing is not a number.
    return out if mask is None else torch.where(mask.any(-1, keepdim=True), out, torch.zeros_like(out))


def _find_gemm(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor | None:
    if (
        not _plain(a, b, *(() if bias is None else (bias,)))
        or a.dim() < 2
        or b.dim() not in (2, 3)
        or a.dtype != b.dtype
    ):
        return None
    if b.dim() == 3 and (a.dim() != 3 or a.shape[0] != b.shape[0]):
        return None
    stored_a, trans_a = _storage(a)
    stored_b, trans_b = _storage(b)
    if stored_a is None or stored_b is None or (trans_a and a.dim() > 2 and b.dim() == 2):
        return None
    batch = b.shape[0] if b.dim() == 3 else 1
    m = a.shape[-2] if b.dim() == 3 else math.prod(a.shape[:-1])
    n, k = b.shape[-1], b.shape[-2]
    if a.shape[-1] != k:
        return None
    if bias is not None and (bias.dtype != a.dtype or bias.shape != (n,) or not bias.is_contiguous()):
        return None
    epilogue = "none" if bias is None else "bias" if activation is None else f"bias+{activation}"
    kernel = TABLE.find(_gemm_key(batch, m, n, k, _DTYPES[a.dtype], trans_a, trans_b, epilogue))
    if kernel is None:
        return None
    if batch == 1:  # the kernel's operands have no batch then
        stored_a = stored_a.reshape((k, m) if trans_a else (m, k))
        stored_b = stored_b.reshape((n, k) if trans_b else (k, n))
    operands = (stored_a, stored_b) if bias is None else (stored_a, stored_b, bias)
    return _reshaped(kernel(*operands), (*a.shape[:-1], n))


def _gemm_key(batch: int, m: int, n: int, k: int, dtype: str, trans_a: bool, trans_b: bool, epilogue: str) -> Key:
    """As the workload's canonical JSON: fields at their default are left out."""
    fields: dict[str, Any] = {"op": "gemm", "m": m, "n": n, "k": k}
    fields.update(dtype_a=dtype, dtype_b=dtype, dtype_out=dtype)
    optional = {"batch": (batch, 1), "trans_a": (trans_a, False), "trans_b": (trans_b, False)}
    fields.update({name: value for name, (value, default) in optional.items() if value != default})
    if epilogue != "none":
        fields["epilogue"] = epilogue
    return key_of(fields)


def _find_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, left: int, right: int
) -> torch.Tensor | None:
    if not _plain(q, k, v) or any(t.dtype != q.dtype for t in (q, k, v)):
        return None
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        return None  # what torch broadcasts or refuses
    if all(t.is_contiguous() for t in (q, k, v)):
        layout = "bhsd"
    elif all(t.transpose(1, 2).is_contiguous() for t in (q, k, v)):
        layout = "bshd"
    else:
        return None
    (batch, heads_q, seq_q, dim), (_, heads_kv, seq_kv, _) = q.shape, k.shape
    fields: dict[str, Any] = {"op": "attention", "heads_q": heads_q, "heads_kv": heads_kv}
    fields.update(seq_q=seq_q, seq_kv=seq_kv, head_dim=dim, head_dim_v=v.shape[-1], dtype=_DTYPES[q.dtype])
    causal, left, right = _window(causal, left, right, seq_q, seq_kv)
    optional: dict[str, tuple[Any, Any]] = {"batch": (batch, 1), "causal": (causal, False), "layout": (layout, "bhsd")}
    optional |= {"window_left": (left, -1), "window_right": (right, -1)}
    optional["scale"] = (None if scale == 1.0 / math.sqrt(dim) else scale, None)
    fields.update({name: value for name, (value, default) in optional.items() if value != default})
    kernel = TABLE.find(key_of(fields))
    if kernel is None:
        return None
    if layout == "bhsd":
        whole: torch.Tensor = kernel(q, k, v)
        return whole
    out: torch.Tensor = kernel(*(t.transpose(1, 2) for t in (q, k, v)))
    return out.transpose(1, 2)


def _window(causal: bool, left: int, right: int, seq_q: int, seq_kv: int) -> tuple[bool, int, int]:
    """One spelling of one mask, as AttentionWorkload has it."""
    left = -1 if left >= seq_kv else left
    if causal or right >= seq_q:
        return causal, left, -1
    return (True, left, -1) if right == 0 else (False, left, right)


def _mask(q: torch.Tensor, k: torch.Tensor, causal: bool, left: int, right: int) -> torch.Tensor | None:
    """[seq_q, seq_kv], True where the query sees the key; None where torch's own flag says the same."""
    seq_q, seq_kv = q.shape[-2], k.shape[-2]
    if left < 0 and right < 0 and (not causal or seq_q == seq_kv):
        return None
    position = torch.arange(seq_q, device=q.device)[:, None] + (seq_kv - seq_q)
    keys = torch.arange(seq_kv, device=q.device)[None, :]
    seen = torch.ones(seq_q, seq_kv, dtype=torch.bool, device=q.device)
    if causal:
        seen &= keys <= position
    if left >= 0:
        seen &= keys >= position - left
    if right >= 0:
        seen &= keys <= position + right
    return seen


def _plain(*tensors: torch.Tensor) -> bool:
    """Whether a compiled kernel may read them: dense, of known dtypes, on one device, and nothing that autograd,
    autocast, a function transform or a tracer must see."""
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if wanted or torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(
        type(t) in (torch.Tensor, torch.nn.Parameter)
        and t.dtype in _DTYPES
        and t.layout is torch.strided
        and t.device.type in ("cpu", "cuda")
        and t.device == tensors[0].device
        and not t.is_neg()
        for t in tensors
    )


def _storage(t: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """(the dense tensor that `t` is or is the transpose of, whether transposed); (None, False) for other strides."""
    if t.is_contiguous():
        return t, False
    flipped = t.transpose(-1, -2)
    return (flipped, True) if flipped.is_contiguous() else (None, False)


def _reshaped(out: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return out if out.shape == shape else out.reshape(shape)
