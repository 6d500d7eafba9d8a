"""Attention: the reference against its definition, and the rule against right and wrong arithmetic."""

import math

import pytest
import torch

from search_space.workload import parse_workload
from workers.check import Acceptance, check
from workers.inputs import RECIPES, make_inputs, torch_dtype
from workers.reference import reference


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny operations: a second thread only waits for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def attention(dtype="float32", **more):
    shape = {"heads": 1, "seq": 4, "head_dim": 16, **more}
    return parse_workload({"op": "attention", "dtype": dtype, **shape})


def plain(workload, inputs):
    """One query at a time, by the definition in AttentionWorkload: (outputs [b, h, s, dv], log-sum-exps)."""
    q, k, v = (inputs[x].double() if workload.layout == "bhsd" else inputs[x].double().transpose(1, 2) for x in "qkv")
    o = torch.zeros(workload.batch, workload.heads_q, workload.seq_q, workload.head_dim_v, dtype=torch.float64)
    lse = torch.full(o.shape[:3], -math.inf, dtype=torch.float64)
    group = workload.heads_q // workload.heads_kv
    for b in range(workload.batch):
        for h in range(workload.heads_q):
            for i in range(workload.seq_q):
                first, last = workload.visible(i)
                if first >= last:
                    continue
                s = k[b, h // group, first:last] @ q[b, h, i] * workload.softmax_scale
                s = workload.softcap * torch.tanh(s / workload.softcap) if workload.softcap else s
                o[b, h, i] = torch.softmax(s, 0) @ v[b, h // group, first:last]
                lse[b, h, i] = torch.logsumexp(s, 0)
    return (o if workload.layout == "bhsd" else o.transpose(1, 2)), lse


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"causal": True, "seq_q": 3, "seq_kv": 7},
        {"causal": True, "seq_q": 7, "seq_kv": 3},
        {"window_left": 2, "window_right": 1},
        {"window_left": 1, "seq_q": 9, "seq_kv": 5, "causal": True},
        {"softcap": 2.0, "scale": 0.7},
        {"heads_q": 6, "heads_kv": 2, "batch": 2, "layout": "bshd", "head_dim_v": 5, "causal": True},
    ],
)
def test_attention_reference(more):
    data = {"op": "attention", "dtype": "float32", "head_dim": 8, "lse": True, "heads": 2, "seq": 6, **more}
    for short, longer in (("heads", "heads_q"), ("seq", "seq_q")):
        if longer in data:
            data.pop(short)
    workload = parse_workload(data)
    for recipe in RECIPES:
        inputs = make_inputs(workload, recipe)
        got = reference(workload, inputs)
        o, lse = plain(workload, inputs)
        assert torch.allclose(got.outputs["o"], o, rtol=1e-11, atol=1e-11)
        assert torch.allclose(got.outputs["lse"], lse, rtol=1e-11, atol=1e-11)
        assert check(workload, {"o": o.float(), "lse": lse.float()}, got).ok


def mean_of_visible(**more):
    """q = 0 and v[j] = j + 1: each output is the mean of the visible v."""
    workload = attention(head_dim=8, **more)
    kv = workload.seq_kv
    inputs = {
        "q": torch.zeros(1, 1, workload.seq_q, 8),
        "k": torch.randn(1, 1, kv, 8),
        "v": torch.arange(1.0, kv + 1)[:, None].expand(kv, 8).reshape(1, 1, kv, 8).contiguous(),
    }
    return reference(workload, inputs).outputs["o"][0, 0, :, 0].tolist()


def test_masks_are_aligned_to_the_bottom_right():
    """cases O5 and O6."""

    def causal(q, kv):
        workload = {"op": "attention", "heads": 1, "head_dim": 8, "dtype": "float32", "causal": True}
        parsed = parse_workload({**workload, "seq_q": q, "seq_kv": kv})
        v = torch.arange(1.0, kv + 1)[:, None].expand(kv, 8).reshape(1, 1, kv, 8)
        inputs = {"q": torch.zeros(1, 1, q, 8), "k": torch.randn(1, 1, kv, 8), "v": v}
        return reference(parsed, inputs).outputs["o"][0, 0, :, 0].tolist()

    assert causal(2, 5) == pytest.approx([2.5, 3.0])
    assert causal(5, 3) == pytest.approx([0.0, 0.0, 1.0, 1.5, 2.0])
    assert causal(1, 7) == pytest.approx([4.0])
    assert mean_of_visible(causal=True, window_left=1) == pytest.approx([1, 1.5, 2.5, 3.5])
    assert mean_of_visible(causal=True, window_left=0) == pytest.approx([1, 2, 3, 4])
    for window in (3, 4, -1):
        assert mean_of_visible(causal=True, window_left=window) == pytest.approx([1, 1.5, 2, 2.5])


def test_a_row_that_sees_nothing_is_zero_and_minus_infinity():
    workload = parse_workload(
        {
            "op": "attention",
            "heads": 1,
            "head_dim": 8,
            "dtype": "float32",
            "causal": True,
            "seq_q": 5,
            "seq_kv": 3,
            "lse": True,
        }
    )
    inputs = make_inputs(workload, "adversarial")
    right = reference(workload, inputs)
    o, lse = right.outputs["o"].float(), right.outputs["lse"].float()
    assert (o[0, 0, :2] == 0).all()
    assert (lse[0, 0, :2] == -math.inf).all()
    assert check(workload, {"o": o, "lse": lse}, right).ok
    for row, value in ((0, 1e-3), (1, float("nan"))):
        wrong = o.clone()
        wrong[0, 0, row, 3] = value
        assert not check(workload, {"o": wrong, "lse": lse}, right).ok
    finite = lse.clone()
    finite[0, 0, 0] = -1e30
    assert not check(workload, {"o": o, "lse": finite}, right).ok


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_float32_is_accepted_and_16_bit_sums_are_not(dtype, recipe, causal):
    workload = parse_workload(
        {"op": "attention", "heads": 1, "head_dim": 64, "dtype": dtype, "seq": 320, "causal": causal}
    )
    inputs = make_inputs(workload, recipe)
    rule = Acceptance(workload, reference(workload, inputs))
    q, k, v = (inputs[x].float() for x in "qkv")
    kind = torch_dtype(dtype)
    scores = q @ k.transpose(-1, -2) / 8
    if causal:
        scores = scores.masked_fill(torch.ones(320, 320).triu(1).bool(), -math.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    rounded = p.to(kind).float()  # as every fused kernel does before the second product
    assert rule.check({"o": ((rounded @ v) / p.sum(-1, keepdim=True)).to(kind)}).ok
    total = torch.zeros_like(v, dtype=torch.bfloat16)
    for j in range(320):
        total = (total.float() + p[..., j : j + 1] * v[..., j : j + 1, :]).bfloat16()
    verdict = rule.check({"o": (total.float() / p.sum(-1, keepdim=True)).to(kind)})
    assert not verdict.ok
    wrong = ((rounded @ v) / p.sum(-1, keepdim=True)).to(kind)
    wrong[0, 0, 319, 63] *= 1.2
    assert "o[0, 0, 319, 63]" in rule.check({"o": wrong}).message


def test_huge_logits():
    """cases O9: one key, so its weight is 1 whatever the logit."""
    workload = attention("bfloat16", seq=1, head_dim=64)
    inputs = {x: torch.full((1, 1, 1, 64), 133120.0).bfloat16() for x in "qkv"}
    right = reference(workload, inputs)
    assert (right.outputs["o"] == 133120).all()
    assert check(workload, {"o": inputs["v"]}, right).ok
    assert not check(workload, {"o": torch.full_like(inputs["v"], float("nan"))}, right).ok
    assert not check(workload, {"o": inputs["v"] * 0.98}, right).ok


def test_a_truncated_head_dimension_is_wrong():
    """cases O8: q and k differ in the last column alone."""
    workload = attention("float16", seq=64, head_dim=80)
    inputs = make_inputs(workload)
    for x in "qk":
        inputs[x][..., :-1] = 0
    right = reference(workload, inputs)
    cut = {"q": inputs["q"].clone(), "k": inputs["k"], "v": inputs["v"]}
    cut["q"][..., 64:] = 0
    assert not check(workload, {"o": reference(workload, cut).outputs["o"].half()}, right).ok
    assert check(workload, {"o": right.outputs["o"].half()}, right).ok


def test_workloads_without_a_reference_are_named():
    workload = attention(kv_layout="paged")
    with pytest.raises(ValueError, match="paged"):
        reference(workload, make_inputs(workload))
