"""The vendor's kernels as PyTorch calls them on a GPU: cuBLAS, and the fastest backend of its attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from search_space.attention import AttentionWorkload
from search_space.gemm import GemmWorkload
from search_space.workload import Workload
from workers import vendor_cpu, vendor_gemm_cuda
from workers.reference import visible_mask

Call = Callable[[], Any]
Bind = Callable[[Sequence[Any], Sequence[Any]], Call]

# Names as result files have them. The last one is slow, and there for what the others refuse.
BACKENDS: Mapping[str, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def vendor_kernels(workload: Workload) -> dict[str, Bind]:
    """name -> what binds the operands; any of them may turn out not to do the workload. ValueError where torch has
    no kernel at all."""
    if isinstance(workload, GemmWorkload):
        w = workload
        if special := vendor_gemm_cuda.special_kernels(w):
            return special
        return {"cublas": lambda inputs, outputs: vendor_cpu.vendor_call(w, inputs, outputs)}
    if isinstance(workload, AttentionWorkload):
        if workload.pass_ != "forward" or workload.kv_layout != "dense" or workload.softcap:
            raise ValueError("torch is compared on dense forward attention without a soft cap only")
        a = workload
        return {name: lambda i, _o, b=backend: _attention(a, i, b) for name, backend in BACKENDS.items()}  # type: ignore[misc]
    raise ValueError(f"no vendor kernel for {workload.op}")


def _attention(w: AttentionWorkload, inputs: Sequence[Any], backend: SDPBackend) -> Call:
    q, k, v = (t.transpose(1, 2) if w.layout == "bshd" else t for t in inputs)
    square = w.causal and w.window_left < 0 and w.seq_q == w.seq_kv
    mask = None if square else _mask(w, backend, q.device)
    scale, grouped = w.softmax_scale, w.heads_q != w.heads_kv

    def call() -> Any:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=square, scale=scale, enable_gqa=grouped
            )
        return out.transpose(1, 2) if w.layout == "bshd" else out

    return call


def _mask(w: AttentionWorkload, backend: SDPBackend, device: Any) -> Any:
    """None where everything is visible. A bottom-right causal mask has a form of its own, the only one that
    FlashAttention takes."""
    right = 0 if w.causal else w.window_right
    if w.window_left < 0 and right < 0:
        return None
    if w.causal and w.window_left < 0 and backend is SDPBackend.FLASH_ATTENTION:
        return causal_lower_right(w.seq_q, w.seq_kv)
    return visible_mask(w, 0, w.seq_q, device)
