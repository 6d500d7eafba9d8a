"""The CPU attention sketches against the formula in float64: every mask, layout, type and tail."""

import random

import pytest

from search_space.attention import AttentionWorkload
from search_space.knob import Knobs
from search_space.registry import all_sketches, get_sketch
from search_space.sketch import Sketch
from tests.search_space.attention_support import attention, check_choice, host_target, random_inputs

SKETCHES = tuple(s for s in all_sketches().values() if s.op == "attention" and s.target_kind == "cpu")
TARGET = host_target()

CASES = {
    "one key": {"heads": 1, "seq": 1, "head_dim": 64},
    "two of three heads": {"batch": 2, "heads": 3, "seq": 5, "head_dim": 16},
    "prime lengths": {"heads": 2, "seq_q": 17, "seq_kv": 197, "head_dim": 59},
    "more queries than keys": {"heads": 2, "seq_q": 37, "seq_kv": 3, "head_dim": 80},
    "tiny head": {"heads": 2, "seq": 19, "head_dim": 3},
    "wide head": {"heads": 1, "seq": 33, "head_dim": 512},
    "values wider": {"heads": 2, "seq": 21, "head_dim": 24, "head_dim_v": 72},
    "values narrow": {"heads": 2, "seq": 21, "head_dim": 72, "head_dim_v": 5},
    "causal": {"heads": 2, "seq": 70, "head_dim": 32, "causal": True},
    "causal, fewer queries": {"heads": 2, "seq_q": 9, "seq_kv": 131, "head_dim": 32, "causal": True},
    "causal, rows that see nothing": {"heads": 1, "seq_q": 41, "seq_kv": 13, "head_dim": 32, "causal": True},
    "window": {"heads": 1, "seq": 150, "head_dim": 16, "causal": True, "window_left": 37},
    "window on both sides": {
        "heads": 1,
        "seq_q": 90,
        "seq_kv": 70,
        "head_dim": 16,
        "window_left": 5,
        "window_right": 9,
    },
    "window right": {"heads": 1, "seq_q": 20, "seq_kv": 70, "head_dim": 16, "window_right": 3},
    "softcap": {"heads": 2, "seq": 40, "head_dim": 64, "softcap": 0.7, "scale": 1.0},
    "scale": {"heads": 2, "seq": 40, "head_dim": 64, "scale": 0.03125},
    "negative scale": {"heads": 2, "seq": 40, "head_dim": 64, "scale": -2.0},
    "grouped": {"heads_q": 6, "heads_kv": 2, "seq": 29, "head_dim": 40, "causal": True},
    "one KV head": {"batch": 2, "heads_q": 5, "heads_kv": 1, "seq_q": 3, "seq_kv": 66, "head_dim": 16},
    "decode": {"heads_q": 8, "heads_kv": 2, "seq_q": 1, "seq_kv": 133, "head_dim": 128, "causal": True},
}


def random_legal(sketch: Sketch, w: AttentionWorkload, rng: random.Random) -> Knobs:
    """A legal choice, drawn without preference."""
    domains = sketch.knobs(w, TARGET)
    while True:
        choice = {k.name: rng.choice(k.values) for k in domains}
        if sketch.violated(w, TARGET, choice) is None:
            return choice


def accepted() -> list[tuple[str, str]]:
    """(case, sketch) of all that the sketches take on."""
    pairs = [(name, s) for name in CASES for s in SKETCHES]
    return [(name, s.name) for name, s in pairs if s.refusal(attention(**CASES[name], dtype="float32"), TARGET) is None]


@pytest.mark.parametrize(("name", "sketch"), accepted())
def test_matches_reference(name: str, sketch: str) -> None:
    """A random legal choice of each case, layouts and log-sum-exp in turn."""
    rng = random.Random(f"{name} {sketch}")
    w = attention(**CASES[name], dtype="float32", layout=rng.choice(["bhsd", "bshd"]), lse=rng.random() < 0.7)
    check_choice(sketch, w, TARGET, random_legal(get_sketch(sketch), w, rng), random_inputs(w))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda s: s.name)
def test_half_types_accumulate_in_float32(sketch: Sketch, dtype: str) -> None:
    """Head sizes that are no whole vectors, values in place and packed alike (the choice is random)."""
    rng = random.Random(f"{dtype} {sketch.name}")
    w = attention(heads_q=4, heads_kv=2, seq_q=7, seq_kv=150, head_dim=59, causal=True, dtype=dtype, lse=True)
    for _ in range(2):
        check_choice(sketch.name, w, TARGET, random_legal(sketch, w, rng), random_inputs(w))


def test_cases_reach_every_sketch() -> None:
    assert {sketch for _, sketch in accepted()} == {s.name for s in SKETCHES}
    assert {name for name, sketch in accepted() if sketch == "cpu_attention_fused"} == set(CASES)
