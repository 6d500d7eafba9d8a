"""Reference attention in float32 or float64, in chunks, and what an output may be off from it."""

from dataclasses import dataclass
from typing import Any

import torch

from search_space.attention import AttentionWorkload
from workers.reference import visible_mask

_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half an ulp, relative
_CHUNK = 1 << 28  # scores held at once
# Scores, powers and sums in float32: ex2.approx and wgmma's accumulation are off by far less than this, relatively.
_FLOAT32_SHARE = 2e-4
_TINY = 1e-7
LSE_TOLERANCE = 2e-3


@dataclass
class Reference:
    """`value` and `tolerance` shaped as O, float32; `lse` [batch, heads_q, seq_q]."""

    value: Any
    tolerance: Any
    lse: Any


def heads_first(w: AttentionWorkload, x: Any) -> Any:
    """A view [batch, heads, seq, dim]."""
    return x.transpose(1, 2) if w.layout == "bshd" else x


def make_reference(w: AttentionWorkload, q: Any, k: Any, v: Any, dtype: Any = torch.float32) -> Reference:
    """Accepted: |O - ref| <= (u + 2e-4) (P |V|) + u |ref|, u the rounding of the 16-bit type (of P, of O).

    Rows that see no key give 0 and an LSE of -inf.
    """
    u = _ROUNDING[w.dtype] * 1.01
    value = torch.empty(w.batch, w.heads_q, w.seq_q, w.head_dim_v, device=q.device)
    tolerance = torch.empty_like(value)
    lse = torch.empty(w.batch, w.heads_q, w.seq_q, device=q.device)
    repeats = w.heads_q // w.heads_kv
    flat = [heads_first(w, x) for x in (q, k, v)]
    rows = max(1, min(w.seq_q, _CHUNK // w.seq_kv))
    heads = max(1, min(w.heads_q, _CHUNK // (rows * w.seq_kv)))
    for b in range(w.batch):
        for h in range(0, w.heads_q, heads):
            mine = torch.arange(h, min(h + heads, w.heads_q), device=q.device)
            kf, vf = (x[b, mine // repeats].to(dtype) for x in flat[1:])
            for r in range(0, w.seq_q, rows):
                end = min(r + rows, w.seq_q)
                s = torch.matmul(flat[0][b, mine, r:end].to(dtype), kf.transpose(1, 2)).mul_(w.softmax_scale)
                if w.softcap:
                    s.div_(w.softcap).tanh_().mul_(w.softcap)
                if w.causal or w.window_left >= 0 or w.window_right >= 0:
                    s.masked_fill_(~visible_mask(w, r, end - r, q.device), float("-inf"))
                part = torch.logsumexp(s, -1)
                s.sub_(torch.where(part.isinf(), 0.0, part)[..., None]).exp_()
                o = torch.matmul(s, vf)
                value[b, mine, r:end] = o.float()
                tolerance[b, mine, r:end] = (
                    torch.matmul(s, vf.abs()) * (u + _FLOAT32_SHARE) + o.abs() * u + _TINY
                ).float()
                lse[b, mine, r:end] = part.float()
    return Reference(_laid_out(w, value), _laid_out(w, tolerance), lse)


def _laid_out(w: AttentionWorkload, x: Any) -> Any:
    return x.transpose(1, 2).contiguous() if w.layout == "bshd" else x


def check_output(o: Any, reference: Reference) -> tuple[bool, float]:
    """(accepted, relative error by norm); NaN, where nothing was written, is never accepted."""
    error = (o.float() - reference.value).abs_()
    accepted = bool((error <= reference.tolerance).all())
    return accepted, float(error.norm() / reference.value.norm().clamp_min(1e-30))


def check_lse(lse: Any, reference: Reference) -> bool:
    same = (lse == reference.lse) | ((lse - reference.lse).abs() <= LSE_TOLERANCE)
    return bool(same.all())
