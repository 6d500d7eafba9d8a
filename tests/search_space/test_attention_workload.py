"""What an attention workload accepts, refuses by name, and treats as the same."""

import math

import pytest

from search_space.errors import InvalidField
from search_space.registry import all_sketches, check_supported, generate_sketches
from search_space.target import Target
from search_space.workload import parse_workload
from tests.search_space.attention_support import attention

TARGET = Target("cpu", "znver3", "test", 2, 256, 32768, 524288, 33554432, 2**34, features=("avx2",))
BASE = {"op": "attention", "heads_q": 8, "heads_kv": 2, "seq_q": 16, "seq_kv": 16, "head_dim": 64, "dtype": "float32"}


@pytest.mark.parametrize(("q", "kv"), [(3, 2), (33, 2), (7, 2), (4, 0), (2, 4), (0, 1), (4, -2)])
def test_heads_that_do_not_divide_name_both_numbers(q: int, kv: int) -> None:
    with pytest.raises(InvalidField) as fault:
        parse_workload({**BASE, "heads_q": q, "heads_kv": kv})
    assert fault.value.field in ("heads_q", "heads_kv")
    assert str(q) in fault.value.message
    assert str(kv) in fault.value.message


@pytest.mark.parametrize(("q", "kv"), [(8, 2), (8, 1), (8, 8)])
def test_heads_that_divide_are_accepted(q: int, kv: int) -> None:
    assert generate_sketches(attention(**{**BASE, "heads_q": q, "heads_kv": kv}), TARGET)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq_kv", 0),
        ("seq_q", 0),
        ("head_dim", 0),
        ("head_dim", 4097),
        ("batch", -1),
        ("batch", 2**63),
        ("window_left", -3),
        ("window_right", -2),
        ("window_left", 1.5),
        ("scale", math.inf),
        ("scale", math.nan),
        ("softcap", math.nan),
        ("softcap", -1.0),
        ("causal", 1),
        ("dtype", "float17"),
        ("layout", "sbhd"),
        ("heads", 4),
        ("sequence", 4),
    ],
)
def test_a_field_that_cannot_be_right_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidField) as fault:
        parse_workload({**BASE, field: value})
    assert fault.value.field == field


@pytest.mark.parametrize("batch", [1, 2**31 - 1])
def test_work_beyond_64_bits_is_refused(batch: int) -> None:
    with pytest.raises(InvalidField):
        parse_workload({**BASE, "batch": batch, "seq_q": 2**31 - 1, "seq_kv": 2**31 - 1, "head_dim": 4096})


def test_a_sequence_of_two_thousand_million_is_counted_at_once() -> None:
    w = attention(**{**BASE, "seq_q": 2**31 - 1, "seq_kv": 2**31 - 1}, causal=True, window_left=127)
    assert w.visible_pairs() == 128 * (2**31 - 1) - 127 * 128 // 2


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"causal": True, "window_left": 16}, {"causal": True}),
        ({"causal": True, "window_left": 99}, {"causal": True, "window_left": -1}),
        ({"window_right": 16}, {}),
        ({"window_right": 0}, {"causal": True}),
        ({"causal": True, "window_right": 5}, {"causal": True}),
        ({"scale": 0.125}, {}),
        ({"dtype": "fp32"}, {}),
        ({"head_dim_v": 64, "layout": "bhsd", "lse": False}, {}),
    ],
    ids=str,
)
def test_one_meaning_has_one_key(fields: dict[str, object], same: dict[str, object]) -> None:
    assert parse_workload({**BASE, **fields}).key == parse_workload({**BASE, **same}).key


def test_json_round_trip_keeps_the_key() -> None:
    w = attention(**BASE, causal=True, window_left=3, softcap=30.0, scale=0.5, layout="bshd", lse=True, head_dim_v=80)
    assert parse_workload(w.to_json()) == w


@pytest.mark.parametrize(
    ("field", "value"),
    [("kv_layout", "paged"), ("kv_layout", "packed"), ("pass", "backward"), ("dtype", "float8_e4m3")],
)
def test_what_no_cpu_sketch_does_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidField) as fault:
        check_supported(parse_workload({**BASE, field: value}), TARGET)
    assert fault.value.field == field
    assert fault.value.allowed


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("extra", [{}, {"seq_q": 1, "seq_kv": 4096}, {"head_dim": 512}, {"head_dim_v": 5}], ids=str)
def test_spaces_have_legal_seeds_and_finite_features(extra: dict[str, object], bits: int) -> None:
    """Every sketch that takes the task offers a legal seed, with resources inside the register file."""
    target = Target("cpu", "any", "test", 2, bits, 32768, 524288, 33554432, 2**34)
    w = attention(**{**BASE, **extra})
    spaces = generate_sketches(w, target)
    assert "cpu_attention_fused" in {s.sketch.name for s in spaces}
    for space in spaces:
        names = [set(space.sketch.features(w, target, k)) for k in space.sketch.seeds(w, target)]
        assert names
        assert all(n == names[0] for n in names)
        for knobs in space.sketch.seeds(w, target):
            assert space.violated(knobs) is None
            assert {k.name for k in space.knobs} == set(knobs)
            assert all(math.isfinite(v) for v in space.sketch.features(w, target, knobs).values())
            traffic = space.sketch.traffic(w, target, knobs)
            assert traffic.memory_bytes >= w.min_bytes()
            assert space.sketch.resources(w, target, knobs).registers <= (32 if bits == 512 else 16)


def test_common_shapes_have_hundreds_of_choices() -> None:
    w = attention(heads=12, seq=512, head_dim=64, dtype="float32")
    for space in generate_sketches(w, TARGET):
        assert space.cardinality >= 500


def test_attention_sketches_are_three() -> None:
    names = {s.name for s in all_sketches().values() if s.op == "attention" and s.target_kind == "cpu"}
    assert {"cpu_attention_decode", "cpu_attention_fused", "cpu_attention_materialised"} <= names
