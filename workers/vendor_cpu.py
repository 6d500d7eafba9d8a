"""PyTorch's own kernel for a workload: what users have without us, on the very same operands.

Masks and views are made ahead; the returned call does what an eager model would do, no more.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from search_space.attention import AttentionWorkload
from search_space.gemm import GemmWorkload
from search_space.workload import Workload

Call = Callable[[], Any]  # returns the result, or None where it was written to the outputs

NAME = "torch"


def vendor_call(workload: Workload, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    """`inputs` and `outputs` are tensors in the workload's order. ValueError for what torch has no kernel for."""
    if isinstance(workload, GemmWorkload):
        return _gemm(workload, inputs, outputs[0])
    if isinstance(workload, AttentionWorkload):
        return _attention(workload, inputs)
    raise ValueError(f"no vendor kernel for {workload.op}")


def _gemm(w: GemmWorkload, inputs: Sequence[Any], out: Any) -> Call:
    if w.groups > 1 or w.scales != "none":
        raise ValueError("torch has no CPU kernel for groups or scales")
    a = inputs[0].transpose(-1, -2) if w.trans_a else inputs[0]
    b = inputs[1].transpose(-1, -2) if w.trans_b else inputs[1]
    bias = inputs[2] if w.epilogue != "none" else None
    activate = _IN_PLACE[w.epilogue.removeprefix("bias+")]

    def product() -> None:
        if bias is None:
            torch.matmul(a, b, out=out)
        elif w.batch > 1:
            torch.baddbmm(bias, a, b, out=out)
        else:
            torch.addmm(bias, a, b, out=out)
        activate(out)

    def mixed() -> Any:
        """torch multiplies in the operands' own dtype; the result is converted after."""
        result = torch.matmul(a, b.to(a.dtype)).to(out.dtype)
        return activate(result if bias is None else result + bias)

    return product if w.dtype_a == w.dtype_b == w.dtype_out else mixed


def _nothing(tensor: Any) -> Any:
    return tensor


_IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "none": _nothing,
    "bias": _nothing,
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "silu": lambda x: F.silu(x, inplace=True),
}


def _attention(w: AttentionWorkload, inputs: Sequence[Any]) -> Call:
    if w.pass_ != "forward" or w.kv_layout != "dense":
        raise ValueError("torch is compared on dense forward attention only")
    q, k, v = (t.transpose(1, 2) if w.layout == "bshd" else t for t in inputs)
    square = w.causal and w.window_left < 0 and w.seq_q == w.seq_kv
    mask = None if square else _mask(w)
    scale, grouped = w.softmax_scale, w.heads_q != w.heads_kv

    def sdpa() -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=square, scale=scale, enable_gqa=grouped
        )

    def capped() -> Any:
        """SDPA has no soft cap: what an eager model computes instead."""
        keys = k.repeat_interleave(w.heads_q // w.heads_kv, 1) if grouped else k
        values = v.repeat_interleave(w.heads_q // w.heads_kv, 1) if grouped else v
        scores = w.softcap * torch.tanh((q @ keys.transpose(-1, -2)) * (scale / w.softcap))
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        return torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype) @ values

    visible = _mask(w)
    run = capped if w.softcap else sdpa
    return (lambda: run().transpose(1, 2)) if w.layout == "bshd" else run


def _mask(w: AttentionWorkload) -> Any:
    """[seq_q, seq_kv] booleans, True where visible, aligned to the bottom right; None where everything is."""
    right = 0 if w.causal else w.window_right
    if w.window_left < 0 and right < 0:
        return None
    position = torch.arange(w.seq_q)[:, None] + (w.seq_kv - w.seq_q)
    key = torch.arange(w.seq_kv)[None, :]
    visible = torch.ones(w.seq_q, w.seq_kv, dtype=torch.bool)
    if w.window_left >= 0:
        visible &= key >= position - w.window_left
    if right >= 0:
        visible &= key <= position + right
    return visible
