"""Scaled dot-product attention: O = softmax(scale * Q K^T + mask) V."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from search_space import fields
from search_space.dtypes import DTYPES, canonical_dtype
from search_space.errors import InvalidField
from search_space.workload import Operand, Workload, check_addressable, register_op

LAYOUTS = ("bhsd", "bshd")
KV_LAYOUTS = ("dense", "packed", "paged")
PASSES = ("forward", "backward")
UNLIMITED = -1


@dataclass(frozen=True)
class AttentionWorkload(Workload):
    """O[b, h, i, :] = softmax_j(scale * Q[b, h, i, :] . K[b, g, j, :]) V[b, g, j, :], g = h // (heads_q / heads_kv).

    Masks are aligned to the bottom right (FlashAttention 2.1 and later): query i stands at key position
    p = i + seq_kv - seq_q. `causal` shows keys j <= p; `window_left` W shows j >= p - W (W keys besides the query's
    own), `window_right` W shows j <= p + W; -1 means unlimited. A row that sees nothing is 0 (and its LSE -inf).
    `softcap` c > 0 replaces a score s by c * tanh(s / c) (Gemma 2, arXiv:2408.00118), before the mask.
    `scale` is 1 / sqrt(head_dim) unless given. `layout`: bhsd [batch, heads, seq, dim] (torch SDPA's) or bshd
    [batch, seq, heads, dim] (FlashAttention's). `lse`: the log-sum-exp [batch, heads_q, seq_q] float32 is wanted too.
    `pass` backward: from q, k, v, o, lse and do (the gradient of o) to dq, dk and dv; those of a key head are summed
    over its query heads; `deterministic`: the same bits from the same inputs, always.
    """

    op: ClassVar[str] = "attention"

    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str
    batch: int = 1
    causal: bool = False
    window_left: int = UNLIMITED
    window_right: int = UNLIMITED
    softcap: float = 0.0
    scale: float | None = None
    layout: str = "bhsd"
    kv_layout: str = "dense"
    lse: bool = False
    pass_: str = "forward"
    deterministic: bool = False

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "AttentionWorkload":
        """Raises InvalidField naming the field. `heads` sets both head counts, `seq` both lengths."""
        fields.only(data, _KNOWN)
        data = _with_shorthands(data)
        _check_heads(data)
        head_dim = fields.integer(data, "head_dim", high=4096)
        default_scale = 1.0 / math.sqrt(head_dim)
        scale = fields.number(data, "scale")
        workload = AttentionWorkload(
            batch=fields.integer(data, "batch", 1),
            heads_q=fields.integer(data, "heads_q"),
            heads_kv=fields.integer(data, "heads_kv"),
            seq_q=fields.integer(data, "seq_q"),
            seq_kv=fields.integer(data, "seq_kv"),
            head_dim=head_dim,
            head_dim_v=fields.integer(data, "head_dim_v", head_dim, high=4096),
            dtype=canonical_dtype(data.get("dtype"), "dtype"),
            causal=fields.boolean(data, "causal"),
            window_left=fields.integer(data, "window_left", UNLIMITED, low=UNLIMITED),
            window_right=fields.integer(data, "window_right", UNLIMITED, low=UNLIMITED),
            softcap=fields.number(data, "softcap", 0.0, low=0.0) or 0.0,
            scale=None if scale == default_scale else scale,
            layout=fields.choice(data, "layout", LAYOUTS, "bhsd"),
            kv_layout=fields.choice(data, "kv_layout", KV_LAYOUTS, "dense"),
            lse=fields.boolean(data, "lse"),
            pass_=fields.choice(data, "pass", PASSES, "forward"),
            deterministic=fields.boolean(data, "deterministic"),
        )
        return workload._normalised()

    def _normalised(self) -> "AttentionWorkload":
        """One key for one meaning: a window as wide as the keys is no window; causal is window_right = 0."""
        changes: dict[str, object] = {}
        if self.window_left >= self.seq_kv:
            changes["window_left"] = UNLIMITED
        if self.causal or self.window_right >= self.seq_q:
            changes["window_right"] = UNLIMITED
        elif self.window_right == 0:
            changes.update(causal=True, window_right=UNLIMITED)
        result = dataclasses.replace(self, **changes) if changes else self  # type: ignore[arg-type]
        check_addressable(result)
        return result

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {"op": self.op}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING or value != f.default:
                out["pass" if f.name == "pass_" else f.name] = value
        return out

    @property
    def softmax_scale(self) -> float:
        return self.scale if self.scale is not None else 1.0 / math.sqrt(self.head_dim)

    def visible(self, i: int) -> tuple[int, int]:
        """Half-open range [first, last) of the keys that query row i sees; empty when first >= last."""
        position = i + self.seq_kv - self.seq_q
        first = max(0, position - self.window_left) if self.window_left >= 0 else 0
        last = self.seq_kv
        if self.causal:
            last = min(last, position + 1)
        elif self.window_right >= 0:
            last = min(last, position + self.window_right + 1)
        return first, max(last, 0)

    def visible_pairs(self) -> int:
        """Query-key pairs of one head that the mask shows."""
        left = self.window_left if self.window_left >= 0 else self.seq_q + self.seq_kv
        right = self.window_right if self.window_right >= 0 else self.seq_q + self.seq_kv
        # Pairs with j <= p + right, less those with j < p - left; p runs over seq_q consecutive positions.
        return self._pairs_up_to(0 if self.causal else right) - self._pairs_up_to(-left - 1)

    def _pairs_up_to(self, offset: int) -> int:
        """Pairs (i, j) with j <= i + seq_kv - seq_q + offset: a sum of clamp(j + 1, 0, seq_kv) in closed form, since
        a request may name two thousand million rows."""

        def clamped_sum(n: int) -> int:
            inside = min(max(n, 0), self.seq_kv)
            return inside * (inside + 1) // 2 + max(n - self.seq_kv, 0) * self.seq_kv

        return clamped_sum(self.seq_kv + offset) - clamped_sum(self.seq_kv - self.seq_q + offset)

    def flops(self) -> int:
        """4 * pairs * d forward (2 products); 2.5 times that backward (5 products; FlashAttention-2, section 4.1)."""
        forward = 2 * self.batch * self.heads_q * self.visible_pairs() * (self.head_dim + self.head_dim_v)
        return forward * 5 // 2 if self.pass_ == "backward" else forward

    def min_bytes(self) -> int:
        return self.footprint_bytes()

    def inputs(self) -> tuple[Operand, ...]:
        q = self._tensor("q", self.heads_q, self.seq_q, self.head_dim)
        k = self._tensor("k", self.heads_kv, self.seq_kv, self.head_dim)
        v = self._tensor("v", self.heads_kv, self.seq_kv, self.head_dim_v)
        if self.pass_ == "forward":
            return (q, k, v)
        do = self._tensor("do", self.heads_q, self.seq_q, self.head_dim_v)
        return (q, k, v, self._output(), self._lse(), do)

    def outputs(self) -> tuple[Operand, ...]:
        if self.pass_ == "backward":
            dq = self._tensor("dq", self.heads_q, self.seq_q, self.head_dim)
            dk = self._tensor("dk", self.heads_kv, self.seq_kv, self.head_dim)
            return (dq, dk, self._tensor("dv", self.heads_kv, self.seq_kv, self.head_dim_v))
        return (self._output(), self._lse()) if self.lse else (self._output(),)

    def _output(self) -> Operand:
        return self._tensor("o", self.heads_q, self.seq_q, self.head_dim_v)

    def _lse(self) -> Operand:
        return Operand("lse", (self.batch, self.heads_q, self.seq_q), "float32", 4)

    def _tensor(self, name: str, heads: int, seq: int, dim: int) -> Operand:
        inner = (heads, seq) if self.layout == "bhsd" else (seq, heads)
        return Operand(name, (self.batch, *inner, dim), self.dtype, DTYPES[self.dtype].itemsize)


def _with_shorthands(data: Mapping[str, object]) -> dict[str, object]:
    out = dict(data)
    for short, names in (("heads", ("heads_q", "heads_kv")), ("seq", ("seq_q", "seq_kv"))):
        if short in out:
            value = out.pop(short)
            for name in names:
                if name in data:
                    raise InvalidField(short, f"cannot be given together with {name}")
                out[name] = value
    if "heads_kv" not in out and "heads_q" in out:
        out["heads_kv"] = out["heads_q"]
    if "seq_kv" not in out and "seq_q" in out:
        out["seq_kv"] = out["seq_q"]
    return out


def _check_heads(data: Mapping[str, object]) -> None:
    """A fault names both numbers: either may be the wrong one."""
    q, kv = data.get("heads_q"), data.get("heads_kv")
    if type(q) is int and type(kv) is int and (kv < 1 or q < 1 or q % kv):
        raise InvalidField("heads_kv" if q >= 1 else "heads_q", f"heads_q = {q} is not a multiple of heads_kv = {kv}")


_KNOWN = frozenset({"op", "pass", "heads", "seq", *(f.name for f in dataclasses.fields(AttentionWorkload))} - {"pass_"})

register_op("attention", AttentionWorkload.from_json)
