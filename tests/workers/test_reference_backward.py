"""The gradients that backward kernels are held to: against torch's autograd, in float64; and what is accepted."""

import math

import pytest
import torch

from search_space.attention import AttentionWorkload
from workers.check import check
from workers.inputs import make_inputs
from workers.reference import reference

SHAPES = [
    {"heads": 2, "seq": 24, "head_dim": 8},
    {"heads_q": 4, "heads_kv": 2, "seq_q": 7, "seq_kv": 20, "head_dim": 8, "causal": True, "batch": 2},
    {"heads_q": 4, "heads_kv": 1, "seq_q": 20, "seq_kv": 7, "head_dim": 8, "causal": True, "layout": "bshd"},
    {"heads": 2, "seq": 16, "head_dim": 8, "softcap": 2.0, "window_left": 5, "scale": 0.7},
]


def workload(shape: dict[str, object], dtype: str = "float32") -> AttentionWorkload:
    return AttentionWorkload.from_json({**shape, "dtype": dtype, "pass": "backward"})


def autograd(w: AttentionWorkload, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    leaves = {n: inputs[n].double().requires_grad_() for n in "qkv"}
    q, k, v = (x if w.layout == "bhsd" else x.transpose(1, 2) for x in leaves.values())
    k, v = (x.repeat_interleave(w.heads_q // w.heads_kv, 1) for x in (k, v))
    scores = w.softmax_scale * (q @ k.mT)
    if w.softcap:
        scores = w.softcap * torch.tanh(scores / w.softcap)
    seen = torch.tensor([[a <= j < b for j in range(w.seq_kv)] for a, b in map(w.visible, range(w.seq_q))])
    weights = torch.nan_to_num(scores.masked_fill(~seen, -math.inf).softmax(-1))
    o = weights @ v
    do = inputs["do"].double() if w.layout == "bhsd" else inputs["do"].double().transpose(1, 2)
    found = torch.autograd.grad((o * do).nan_to_num().sum(), list(leaves.values()))
    return dict(zip(("dq", "dk", "dv"), (x.nan_to_num() for x in found)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_equals_autograd(shape: dict[str, object]) -> None:
    w = workload(shape)
    inputs = make_inputs(w)
    assert [o.name for o in w.inputs()] == ["q", "k", "v", "o", "lse", "do"]
    found = reference(w, inputs).outputs
    for name, wanted in autograd(w, inputs).items():
        # o and lse are given in float32.
        torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", ["random", "adversarial"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_kernel_is_accepted_and_a_sloppy_one_is_not(dtype: str, recipe: str) -> None:
    w = workload({"heads": 2, "seq_q": 70, "seq_kv": 90, "head_dim": 16, "causal": True}, dtype)
    inputs = make_inputs(w, recipe)
    wanted = reference(w, inputs)
    outs = by_hand(w, inputs, torch.float32, inputs["q"].dtype)
    result = check(w, outs, wanted)
    assert result.ok, result.message
    for name in ("dq", "dk", "dv"):
        broken = {**outs, name: outs[name].clone()}
        broken[name][0, 1, 3, 2] += 0.05 * float(wanted.outputs[name].abs().max())
        assert not check(w, broken, wanted).ok
    if dtype == "float32":
        assert not check(w, by_hand(w, inputs, torch.float32, torch.bfloat16), wanted).ok


def by_hand(
    w: AttentionWorkload, inputs: dict[str, torch.Tensor], accumulate: torch.dtype, pairs: torch.dtype
) -> dict[str, torch.Tensor]:
    """As a kernel does: float32 scores, P and dS rounded to `pairs` before their products."""
    q, k, v, o, do = (inputs[n].to(accumulate) for n in ("q", "k", "v", "o", "do"))
    seen = torch.tensor([[a <= j < b for j in range(w.seq_kv)] for a, b in map(w.visible, range(w.seq_q))])
    weights = torch.exp((w.softmax_scale * (q @ k.mT) - inputs["lse"][..., None]).masked_fill(~seen, -math.inf))
    ds = weights * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    weights, ds = (x.to(pairs).to(accumulate) for x in (weights, ds))
    found = {"dq": w.softmax_scale * ds @ k, "dk": w.softmax_scale * ds.mT @ q, "dv": weights.mT @ do}
    return {n: x.to(inputs["q"].dtype) for n, x in found.items()}
