"""Inputs, reference and acceptance of float8 with scales and of grouped GEMM, against sums written out."""

import pytest
import torch

from search_space.gemm import GemmWorkload
from workers.check import Acceptance
from workers.inputs import make_inputs, poisoned_outputs
from workers.reference import group_rows, reference

FLOAT8 = {"m": 3, "n": 131, "k": 260, "dtype": "fp8", "trans_b": True}
EXPERTS = {"m": 10, "n": 12, "k": 8, "dtype": "bf16", "trans_b": True, "groups": 7}


def workload(**data: object) -> GemmWorkload:
    return GemmWorkload.from_json(data)


def dequantised(w: GemmWorkload, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A [m, k] and B [n, k] in float64, element by element."""
    a, b = inputs["a"].double(), inputs["b"].double()
    if w.scales == "tensor":
        return a * float(inputs["a_scale"]), b * float(inputs["b_scale"])
    for i in range(w.k):
        for row in range(w.m):
            a[row, i] *= float(inputs["a_scale"][i // 128, row])
        for row in range(w.n):
            b[row, i] *= float(inputs["b_scale"][row // 128, i // 128])
    return a, b


@pytest.mark.parametrize("scales", ["tensor", "block"])
@pytest.mark.parametrize("recipe", ["random", "adversarial"])
def test_the_scales_are_multiplied_with_block_by_block(scales: str, recipe: str) -> None:
    w = workload(**FLOAT8, scales=scales)
    inputs = make_inputs(w, recipe)
    assert all(float(inputs[name].min()) > 0.0 for name in ("a_scale", "b_scale"))
    a, b = dequantised(w, inputs)
    expected = reference(w, inputs)
    torch.testing.assert_close(expected.outputs["c"], a @ b.T, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(expected.magnitudes["c"]["sums"], (a.abs() @ b.abs().T).float(), rtol=1e-5, atol=1e-5)


def test_a_scale_of_the_wrong_block_is_a_wrong_answer() -> None:
    w = workload(**FLOAT8 | {"k": 256}, scales="block")
    inputs = make_inputs(w)
    accept = Acceptance(w, reference(w, inputs))
    swapped = reference(w, {**inputs, "a_scale": inputs["a_scale"].flip(0)})
    assert accept.check({"c": reference(w, inputs).outputs["c"].to(torch.bfloat16)}).ok
    assert not accept.check({"c": swapped.outputs["c"].to(torch.bfloat16)}).ok


@pytest.mark.parametrize("grouping", ["contiguous", "masked"])
@pytest.mark.parametrize("recipe", ["random", "adversarial"])
def test_each_row_is_multiplied_with_its_own_groups_matrix(grouping: str, recipe: str) -> None:
    w = workload(**EXPERTS, grouping=grouping)
    inputs = make_inputs(w, recipe)
    ranges = group_rows(w, inputs)
    sizes = [end - begin for begin, end in ranges]
    assert len(ranges) == 7
    assert all(size >= 0 for size in sizes)
    assert (sizes == [10] * 7) if recipe == "random" else (0 in sizes and sum(sizes) < 70)
    expected = reference(w, inputs).outputs["c"]
    seen = torch.zeros(70, dtype=torch.bool)
    for g, (begin, end) in enumerate(ranges):
        for row in range(begin, end):
            assert not seen[row], "groups do not overlap"
            seen[row] = True
            torch.testing.assert_close(expected[row], inputs["b"][g].double() @ inputs["a"][row].double())
    assert torch.equal(expected.isnan().any(1), ~seen)


def test_rows_of_no_group_may_hold_anything_and_rows_of_a_group_must_be_written() -> None:
    w = workload(**EXPERTS, grouping="masked")
    inputs = make_inputs(w, "adversarial")
    expected = reference(w, inputs)
    accept = Acceptance(w, expected)
    right = torch.where(expected.outputs["c"].isnan(), 7.0, expected.outputs["c"]).to(torch.bfloat16)
    assert accept.check({"c": right}).ok
    assert accept.check({"c": expected.outputs["c"].to(torch.bfloat16)}).ok, "poison left where nothing is due"
    row = next(begin for begin, end in group_rows(w, inputs) if end > begin)
    right[row, 3] = float("nan")
    found = accept.check({"c": right})
    assert not found.ok
    assert f"c[{row}, 3]" in found.message
    assert not accept.check(poisoned_outputs(w)).ok


def test_block_scales_of_groups_belong_to_their_group() -> None:
    w = workload(**EXPERTS | {"dtype": "fp8", "k": 130, "n": 130, "groups": 2}, grouping="masked", scales="block")
    inputs = make_inputs(w)
    expected = reference(w, inputs).outputs["c"]
    a, b = inputs["a"][13].double(), inputs["b"][1, 129].double()
    total = sum(
        float(a[i] * b[i]) * float(inputs["a_scale"][i // 128, 13] * inputs["b_scale"][1, 1, i // 128].double())
        for i in range(130)
    )
    assert float(expected[13, 129]) == pytest.approx(total, rel=1e-6)
