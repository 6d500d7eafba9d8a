"""attention: tuned where the shape was tuned, torch's own kernels otherwise (`fallback`)."""

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from tilewright.runtime.kernel import Kernel
from tilewright.torch import calls, fallback
from tilewright.torch.fallback import Mask
from tilewright.torch.table import TABLE, Plan, key_of
from tilewright.torch.tally import Key, Tally

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
ALIGNED = 15  # mask of an address: CUDA kernels read 16 bytes at once


class Options(NamedTuple):
    causal: bool
    scale: float | None
    left: int
    right: int
    softcap: float

    def mask(self, q: torch.Tensor, k: torch.Tensor) -> Mask:
        return Mask.of(q, k, self.causal, self.left, self.right)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
) -> torch.Tensor:
    """softmax(scale * q k^T + mask) v over q [batch, heads_q, seq_q, d], k and v [batch, heads_kv, seq_kv, d].

    Masks are aligned to the bottom right; -1 means an unlimited window; a row that sees no key is 0. `softcap` c > 0
    replaces a score s by c tanh(s / c). Dense [batch, seq, heads, d] tensors, transposed, are taken as they lie.

    On a miss scaled_dot_product_attention runs where its mask means the same (its own causal flag is aligned to the top
    left), else flex_attention; NoFallback says what neither can do.
    """
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k and v must have 4 dimensions, got {q.dim()}, {k.dim()} and {v.dim()}")
    if window_left < -1 or window_right < -1:
        raise ValueError(f"a window must be -1 or more, got {window_left} and {window_right}")
    if softcap < 0.0:
        raise ValueError(f"softcap must be 0 (none) or more, got {softcap}")
    options = Options(causal, scale, window_left, window_right, softcap)
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if torch.compiler.is_compiling() or calls.observed():
        if wanted or calls.redefined(q):
            return _fallback(q, k, v, options)
        return torch.ops.tilewright.attention(q, k, v, *options)
    if wanted and calls.transformed() is None:
        from tilewright.torch.training import differentiable  # which is made of this module

        trained = differentiable(q, k, v, options)
        return _fallback(q, k, v, options) if trained is None else trained
    plan = plan_of(q, k, v, options)
    if plan.run is None:
        return _fallback(q, k, v, options)
    if (why := calls.transformed()) is not None:
        TABLE.refused(plan.device, plan.key, why)
        return _fallback(q, k, v, options)
    found = plan.run(q, k, v)
    return _fallback(q, k, v, options) if found is None else found


def run_any(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
) -> torch.Tensor:
    """What runs inside the registered operator: real tensors, no gradient, no transform. O lies as in `empty_like`."""
    options = Options(causal, scale, window_left, window_right, softcap)
    plan = plan_of(q, k, v, options)
    found = None if plan.run is None else plan.run(q, k, v)
    if found is not None:
        return found
    out = _fallback(q, k, v, options)
    wanted = empty_like(q, v)
    return out if out.stride() == wanted.stride() else wanted.copy_(out)


def empty_like(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """O [batch, heads_q, seq_q, head_dim_v], in memory laid out as q is: heads or rows outermost."""
    batch, heads, seq, _ = q.shape
    if not q.is_contiguous() and q.transpose(1, 2).is_contiguous():
        return q.new_empty((batch, seq, heads, v.shape[-1])).transpose(1, 2)
    return q.new_empty((batch, heads, seq, v.shape[-1]))


def _fallback(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> torch.Tensor:
    return fallback.attend(q, k, v, options.mask(q, k), options.scale, options.softcap)


def plan_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Plan[Run]:
    """The plan of the call's signature. Where torch is to run the call has been counted, and `run` is None."""
    plans = TABLE.plans
    signature = signature_of(q, k, v, options)
    plan = plans.get(signature) if signature else None
    if plan is None:
        plan = _new_plan(q, k, v, options)
        if signature:
            TABLE.keep(plans, signature, plan)
    if plan.run is None:
        plan.tally.count()
    return plan


def signature_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Hashable) -> tuple[object, ...]:
    """All that a plan depends on; () for operands that no plan can be kept for."""
    try:
        signature = (
            q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.device,
            k.device, v.device, type(q), type(k), type(v), options,
        )  # fmt: skip
        hash(signature)
    except (RuntimeError, TypeError):  # no strides, or symbolic ones
        return ()
    return () if q.is_neg() or k.is_neg() or v.is_neg() else signature


def _new_plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Plan[Run]:
    device = calls.device_of(q)
    layouts = layouts_of(q, k, v)
    if isinstance(layouts, str):
        key = calls.described("attention", q=q, k=k, v=v)
        return Plan(device, key, TABLE.tallies.of(device, key, layouts))
    keys = {workload_key(q, k, v, options, layout): layout for layout in layouts}
    kernel, tally = TABLE.find(device, *keys)
    if kernel is None:
        return Plan(device, tally.key, tally)
    by_rows = keys[tally.key] == "bshd"
    if device == "cuda":
        return Plan(device, tally.key, tally, _cuda_run(kernel, q, v, by_rows, tally))
    return Plan(device, tally.key, tally, _cpu_run(kernel, by_rows, tally))


def layouts_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...] | str:
    """How the three lie (with a single head or a single row both layouts are true); or why no kernel may read them."""
    if (why := calls.unfit(q, k, v)) is not None:
        return why
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        return "shapes"  # what torch broadcasts or refuses
    found = []
    if q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
        found.append("bhsd")
    if all(t.transpose(1, 2).is_contiguous() for t in (q, k, v)):
        found.append("bshd")
    return tuple(found) or "strides"


def workload_key(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, layout: str, **more: object
) -> Key:
    """As the workload's canonical JSON: fields at their default are left out."""
    (batch, heads_q, seq_q, dim), (_, heads_kv, seq_kv, _) = q.shape, k.shape
    mask = options.mask(q, k)
    fields: dict[str, Any] = {"op": "attention", "heads_q": heads_q, "heads_kv": heads_kv, "seq_q": seq_q}
    fields.update(seq_kv=seq_kv, head_dim=dim, head_dim_v=v.shape[-1], dtype=calls.DTYPES[q.dtype])
    optional: dict[str, tuple[Any, Any]] = {
        "batch": (batch, 1),
        "causal": (mask.causal, False),
        "window_left": (mask.left, -1),
        "window_right": (mask.right, -1),
        "softcap": (float(options.softcap), 0.0),
        "scale": (None if options.scale == 1.0 / math.sqrt(dim) else options.scale, None),
        "layout": (layout, "bhsd"),
    }
    fields.update({name: value for name, (value, default) in optional.items() if value != default})
    return key_of({**fields, **more})


def _cuda_run(kernel: Kernel, q: torch.Tensor, v: torch.Tensor, by_rows: bool, tally: Tally) -> Run:
    """Every operand is dense where it lies, so that addresses are all the kernel needs."""
    from tilewright.runtime.cuda import CudaKernel

    assert isinstance(kernel, CudaKernel)
    launch, count, device = kernel.run, tally.count, q.get_device()
    batch, heads, seq, _ = q.shape
    shape = (batch, seq, heads, v.shape[-1]) if by_rows else (batch, heads, seq, v.shape[-1])

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
        pq, pk, pv = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (pq | pk | pv) & ALIGNED:
            TABLE.refused("cuda", tally.key, "alignment")
            return None
        out = q.new_empty(shape)
        launch(device, (pq, pk, pv, out.data_ptr()))
        count()
        return out.transpose(1, 2) if by_rows else out

    return run


def _cpu_run(kernel: Kernel, by_rows: bool, tally: Tally) -> Run:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
        operands = [t.detach().transpose(1, 2) if by_rows else t.detach() for t in (q, k, v)]
        out: torch.Tensor = kernel(*operands)
        tally.count()
        return out.transpose(1, 2) if by_rows else out

    return run
