"""GEMM requests: what is accepted, what it means, what is refused and by which field."""

import pytest

from search_space.errors import InvalidField
from search_space.gemm import GemmWorkload
from search_space.workload import parse_workload

BASE = {"op": "gemm", "m": 5, "n": 7, "k": 9, "dtype": "float32"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"m": 0}, "m"),
        ({"n": -3}, "n"),
        ({"k": 0}, "k"),
        ({"batch": 0}, "batch"),
        ({"m": 2**31}, "m"),
        ({"m": 2**63}, "m"),
        ({"m": 1.0}, "m"),
        ({"m": True}, "m"),
        ({"m": "5"}, "m"),
        ({"m": None}, "m"),
        ({"dtype": "float17"}, "dtype"),
        ({"dtype": "float64"}, "dtype"),
        ({"dtype": None}, "dtype"),
        ({"dtype_b": "int8"}, "dtype_b"),
        ({"dtype_out": "nonsense"}, "dtype_out"),
        ({"epilogue": "gelu"}, "epilogue"),
        ({"trans_a": 1}, "trans_a"),
        ({"accumulate": "float16"}, "accumulate"),
        ({"transb": True}, "transb"),
        ({"groups": 4}, "grouping"),
        ({"grouping": "masked"}, "grouping"),
        ({"groups": 4, "grouping": "masked", "batch": 2}, "groups"),
        ({"scales": "tensor"}, "scales"),
        ({"m": 2**31 - 1, "k": 2**31 - 1}, "m"),
        ({"m": 2**31 - 1, "n": 2**31 - 1, "k": 1}, "m"),
        ({"batch": 2**31 - 1, "n": 2**31 - 1}, "n"),
        ({"m": 2**21, "n": 2**21, "k": 2**22}, "k"),
    ],
)
def test_a_fault_names_its_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_workload({**BASE, **change})
    assert refused.value.field == field
    assert str(refused.value).startswith(field)


def test_aliases_and_defaults_give_one_key() -> None:
    short = parse_workload({**BASE, "dtype": "bf16"})
    full = parse_workload(
        {
            "op": "gemm",
            "m": 5,
            "n": 7,
            "k": 9,
            "dtype_a": "bfloat16",
            "dtype_b": "bfloat16",
            "dtype_out": "bfloat16",
            "batch": 1,
            "trans_b": False,
            "epilogue": "none",
        }
    )
    assert short == full
    assert short.key == full.key
    assert short.key != parse_workload({**BASE, "dtype": "bf16", "trans_b": True}).key


def test_canonical_json_reads_back() -> None:
    workload = parse_workload({**BASE, "batch": 3, "trans_a": True, "epilogue": "bias+silu", "b_constant": True})
    assert parse_workload(workload.to_json()) == workload


def test_counts_and_operands() -> None:
    workload = GemmWorkload(5, 7, 9, "float32", "float32", "float32", batch=3, trans_b=True, epilogue="bias")
    assert workload.flops() == 2 * 3 * 5 * 7 * 9
    assert workload.min_bytes() == 4 * (3 * 5 * 9 + 3 * 7 * 9 + 7 + 3 * 5 * 7)
    assert [(o.name, o.shape) for o in workload.inputs()] == [("a", (3, 5, 9)), ("b", (3, 7, 9)), ("bias", (7,))]
    assert [(o.name, o.shape) for o in workload.outputs()] == [("c", (3, 5, 7))]


def test_scales_and_groups_are_operands_in_the_order_in_which_an_artifact_takes_them() -> None:
    fp8 = {"op": "gemm", "m": 5, "n": 130, "k": 300, "dtype": "fp8", "trans_b": True, "epilogue": "bias"}
    tensor, block = (parse_workload({**fp8, "scales": s}) for s in ("tensor", "block"))
    assert [o.name for o in tensor.inputs()] == ["a", "b", "a_scale", "b_scale", "bias"]
    assert [o.shape for o in tensor.inputs()[2:4]] == [(1,), (1,)]
    assert [(o.shape, o.dtype) for o in block.inputs()[2:4]] == [((3, 5), "float32"), ((2, 3), "float32")]
    assert block.outputs()[0].dtype == "bfloat16"
    assert block.min_bytes() == 5 * 300 + 130 * 300 + 4 * (15 + 6) + 2 * 130 + 2 * 5 * 130
    moe = {"op": "gemm", "m": 6, "n": 10, "k": 8, "dtype": "bf16", "trans_b": True, "groups": 3}
    for grouping, name in (("contiguous", "offsets"), ("masked", "counts")):
        w = parse_workload({**moe, "grouping": grouping})
        assert [(o.name, o.shape) for o in w.inputs()] == [("a", (18, 8)), ("b", (3, 10, 8)), (name, (3,))]
        assert w.inputs()[2].dtype == "int32"
        assert w.flops() == 2 * 18 * 10 * 8
        assert parse_workload(w.to_json()) == w
    both = parse_workload({**moe, "grouping": "masked", "dtype": "fp8", "scales": "block"})
    assert [o.shape for o in both.inputs()[2:4]] == [(1, 18), (3, 1, 1)]


def test_block_scales_have_no_batch() -> None:
    data = {"op": "gemm", "m": 5, "n": 7, "k": 9, "dtype": "fp8", "scales": "block", "batch": 2}
    with pytest.raises(InvalidField, match="scales"):
        parse_workload(data)
