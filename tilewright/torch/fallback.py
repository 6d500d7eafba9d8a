"""Attention by torch's own kernels, for calls that no tuned schedule serves: always the mask that was asked for."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

# Masks of one call kept for the next; flex_attention compiles anew for each.
_MASKS = 64


class NoFallback(RuntimeError):
    """No schedule serves the call, and torch has no kernel that means the same."""


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees, aligned to the bottom right, in one spelling (as AttentionWorkload): causal is a right
    window of 0, and a window as wide as the keys is none. -1: unlimited."""

    seq_q: int
    seq_kv: int
    causal: bool
    left: int
    right: int

    @staticmethod
    def of(q: torch.Tensor, k: torch.Tensor, causal: bool, left: int, right: int) -> "Mask":
        seq_q, seq_kv = q.shape[-2], k.shape[-2]
        left = -1 if left >= seq_kv else left
        if causal or right >= seq_q:
            return Mask(seq_q, seq_kv, causal, left, -1)
        return Mask(seq_q, seq_kv, True, left, -1) if right == 0 else Mask(seq_q, seq_kv, False, left, right)

    @property
    def flag(self) -> bool | None:
        """The is_causal of scaled_dot_product_attention (top left) that means the same, None where neither does."""
        if self.left >= 0 or self.right >= 0:
            return None
        if not self.causal or self.seq_q == 1:  # the last query sees every key
            return False
        return True if self.seq_q == self.seq_kv else None

    def predicate(self) -> Callable[..., Any]:
        """flex_attention's mask_mod(batch, head, query, key)."""
        shift, causal, left, right = self.seq_kv - self.seq_q, self.causal, self.left, self.right

        def seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
            position = query + shift
            found = key >= 0
            if causal:
                found = found & (key <= position)
            if left >= 0:
                found = found & (key >= position - left)
            if right >= 0:
                found = found & (key <= position + right)
            return found

        return seen

    def dense(self, device: torch.device) -> torch.Tensor:
        """bool [seq_q, seq_kv], True where the query sees the key."""
        query = torch.arange(self.seq_q, device=device)[:, None]
        seen: torch.Tensor = self.predicate()(0, 0, query, torch.arange(self.seq_kv, device=device)[None, :])
        return seen.expand(self.seq_q, self.seq_kv)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None, softcap: float
) -> torch.Tensor:
    """softmax(mask(softcap(scale q k^T))) v; a row that sees no key is 0. Raises NoFallback."""
    grouped = q.shape[1] != k.shape[1]
    if softcap == 0.0 and (flag := mask.flag) is not None:
        return functional.scaled_dot_product_attention(q, k, v, None, 0.0, flag, scale=scale, enable_gqa=grouped)
    if softcap == 0.0 and q.device.type != "cuda":
        # An explicit mask says the same anywhere; on a GPU it costs memory traffic that a block mask does not.
        seen = mask.dense(q.device)
        out = functional.scaled_dot_product_attention(q, k, v, seen, 0.0, False, scale=scale, enable_gqa=grouped)
        # A row that sees no key is defined as 0; a softmax over nothing is not a number.
        return torch.where(seen.any(-1, keepdim=True), out, torch.zeros_like(out))
    return _flex(q, k, v, mask, scale, softcap, grouped)


def _flex(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None, softcap: float, grouped: bool
) -> torch.Tensor:
    if torch.compiler.is_compiling():  # traced with its caller
        return _call(q, k, v, _cap(softcap), _blocks(mask, q.device), scale, grouped)
    blocks = None if mask.flag is False else _kept_blocks(mask, q.device)
    try:
        if q.device.type != "cuda":
            return _call(q, k, v, _kept_cap(softcap), blocks, scale, grouped)
        with torch._dynamo.config.patch(recompile_limit=_MASKS):
            found: torch.Tensor = _compiled()(q, k, v, _kept_cap(softcap), blocks, scale, grouped)
        return found
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError, ValueError) as error:
        what = f"q {list(q.shape)}, k {list(k.shape)}, {q.dtype} on {q.device.type}, {mask}, softcap {softcap:g}"
        raise NoFallback(
            f"no schedule serves this attention, scaled_dot_product_attention masks otherwise, and flex_attention "
            f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__} ({what})"
        ) from error


def _call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: Any, blocks: Any, scale: float | None, grouped: bool
) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    # Its other kernel, for few queries, fails to compile for some lengths (torch 2.11).
    options: Any = {"FORCE_USE_FLEX_ATTENTION": True}
    out: torch.Tensor = flex_attention(
        q, k, v, score_mod=cap, block_mask=blocks, scale=scale, enable_gqa=grouped, kernel_options=options
    )
    return out


@functools.cache
def _compiled() -> Any:
    """fullgraph: uncompiled, flex_attention would hold the whole score matrix; better an error."""
    return torch.compile(_call, fullgraph=True, dynamic=False)


def _cap(softcap: float) -> Callable[..., Any] | None:
    if softcap == 0.0:
        return None

    def capped(score: Any, _batch: Any, _head: Any, _query: Any, _key: Any) -> Any:
        return softcap * torch.tanh(score / softcap)

    return capped


def _blocks(mask: Mask, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    make: Any = create_block_mask
    if device.type == "cuda" and not torch.compiler.is_compiling():
        make = torch.compile(make)  # eager would hold the mask itself
    return make(mask.predicate(), None, None, mask.seq_q, mask.seq_kv, device=device)


_kept_blocks = functools.lru_cache(_MASKS)(_blocks)
_kept_cap = functools.lru_cache(_MASKS)(_cap)
