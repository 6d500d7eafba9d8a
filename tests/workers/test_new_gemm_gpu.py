"""GEMV, float8 and grouped GEMM on a device: built, loaded as a user would, checked on both recipes."""

import pytest
import torch

import tilewright
from benchmarks.h200_candidates import H200
from benchmarks.h200_more_candidates import candidates, check_workloads
from search_space.gemm import GemmWorkload
from workers.build import build_candidate
from workers.check import Acceptance
from workers.inputs import make_inputs, poisoned_outputs
from workers.reference import reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
    ),
]


@pytest.mark.parametrize("w", check_workloads(), ids=lambda w: w.key)
def test_a_built_candidate_is_right_on_both_recipes(w: GemmWorkload) -> None:
    candidate = candidates("checks", w)[0]
    built = build_candidate(w, H200, candidate)
    assert built.artifact is not None, built.error
    kernel = tilewright.load(built.artifact)
    for recipe in ("random", "adversarial"):
        inputs = make_inputs(w, recipe, "cuda")
        out = poisoned_outputs(w, "cuda")["c"]
        kernel(*(inputs[o.name] for o in w.inputs()), out=out)
        found = Acceptance(w, reference(w, inputs)).check({"c": out})
        assert found.ok, found.message


def test_a_view_that_begins_off_a_load_is_refused_by_name() -> None:
    w = GemmWorkload.from_json({"m": 1, "n": 64, "k": 64, "dtype": "bf16", "trans_b": True})
    built = build_candidate(w, H200, candidates("gemv", w)[0])
    assert built.artifact is not None, built.error
    kernel = tilewright.load(built.artifact)
    a = torch.zeros(1, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.zeros(64 * 64 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(64, 64)
    with pytest.raises(ValueError, match="b: must begin at a multiple of 16 bytes"):
        kernel(a, b)
