"""Public fault reports as exact vectors: mask alignment, windows, odd head sizes, huge logits (q = 0, v[j] = j + 1 in
the mask cases, so that every row is the mean of the values it sees)."""

import math

import pytest
import torch

from search_space.attention import AttentionWorkload
from search_space.knob import Knobs
from search_space.registry import generate_sketches
from tests.search_space.attention_support import (
    TORCH,
    attention,
    check_choice,
    compile_choice,
    host_target,
    run_choice,
)

TARGET = host_target()


def choices(w: AttentionWorkload) -> list[tuple[str, Knobs]]:
    """An expert's first choice of every sketch that takes the workload."""
    found = [(s.sketch.name, s.sketch.seeds(w, TARGET)[0]) for s in generate_sketches(w, TARGET)]
    assert found
    return found


def means(expected: list[float], **fields: object) -> None:
    """q = 0 and v[j] = j + 1: the first output column of every sketch is `expected`."""
    w = attention(heads=1, head_dim=8, lse=True, **fields)
    dtype = TORCH[w.dtype]
    q, k = torch.zeros(1, 1, w.seq_q, 8, dtype=dtype), torch.ones(1, 1, w.seq_kv, 8, dtype=dtype)
    v = torch.arange(1, w.seq_kv + 1, dtype=dtype).reshape(1, 1, -1, 1).repeat(1, 1, 1, 8)
    for sketch, knobs in choices(w):
        out, lse = run_choice(compile_choice(sketch, w, TARGET, knobs), w, [q, k, v])
        want = torch.tensor(expected, dtype=dtype)
        torch.testing.assert_close(out[0, 0], want[:, None].expand(-1, 8), rtol=1e-6, atol=0)
        for i in range(w.seq_q):
            first, last = w.visible(i)
            count = max(0, last - first)
            assert float(lse[0, 0, i]) == pytest.approx(math.log(count) if count else -math.inf, abs=1e-6)


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "expected"), [(2, 5, [2.5, 3]), (5, 3, [0, 0, 1, 1.5, 2]), (1, 7, [4])], ids=str
)
def test_causal_is_aligned_to_the_bottom_right(seq_q: int, seq_kv: int, expected: list[float]) -> None:
    means(expected, seq_q=seq_q, seq_kv=seq_kv, causal=True, dtype="float32")


@pytest.mark.parametrize(
    ("window", "expected"),
    [(1, [1, 1.5, 2.5, 3.5]), (0, [1, 2, 3, 4]), (3, [1, 1.5, 2, 2.5]), (4, [1, 1.5, 2, 2.5]), (-1, [1, 1.5, 2, 2.5])],
    ids=str,
)
def test_window_counts_keys_besides_the_own(window: int, expected: list[float]) -> None:
    means(expected, seq=4, causal=True, window_left=window, dtype="float16")


@pytest.mark.parametrize("head_dim", [59, 80, 128, 224, 256])
def test_last_column_of_the_head_counts(head_dim: int) -> None:
    """q and k differ from 0 in the last column only; padding must not change the scale 1 / sqrt(head_dim)."""
    w = attention(heads=1, seq=64, head_dim=head_dim, dtype="float16")
    generator = torch.Generator().manual_seed(head_dim)
    q, k, v = (torch.zeros(1, 1, 64, head_dim, dtype=torch.float16) for _ in range(3))
    q[..., -1] = torch.rand(64, generator=generator) * 8 - 4
    k[..., -1] = torch.rand(64, generator=generator) * 8 - 4
    v[:] = torch.rand(v.shape, generator=generator) * 2 - 1
    for sketch, knobs in choices(w):
        check_choice(sketch, w, TARGET, knobs, [q, k, v])


def test_huge_logits_are_finite() -> None:
    """One key of softmax weight 1: logits of 1.4e11 must give the value itself."""
    w = attention(heads=1, seq=1, head_dim=64, dtype="bfloat16")
    inputs = [torch.full((1, 1, 1, 64), 133120.0, dtype=torch.bfloat16) for _ in range(3)]
    for sketch, knobs in choices(w):
        (out,) = run_choice(compile_choice(sketch, w, TARGET, knobs), w, inputs)
        assert torch.equal(out, inputs[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_far_apart_pick_one_key(dtype: str) -> None:
    """Scores from -1e6 to 1e6 over several blocks: all weight falls on one key, nothing overflows."""
    w = attention(heads=1, seq_q=3, seq_kv=80, head_dim=8, scale=1.0, dtype=dtype)
    t = TORCH[dtype]
    q = torch.full((1, 1, 3, 8), 1000.0, dtype=t)
    k = torch.full((1, 1, 80, 8), -125.0, dtype=t)
    k[0, 0, 71] = 125.0
    v = torch.arange(80, dtype=t).reshape(1, 1, 80, 1).repeat(1, 1, 1, 8)
    for sketch, knobs in choices(w):
        (out,) = run_choice(compile_choice(sketch, w, TARGET, knobs), w, [q, k, v])
        assert torch.equal(out, torch.full((1, 1, 3, 8), 71.0, dtype=t))
