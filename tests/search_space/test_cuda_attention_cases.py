"""Public fault reports on attention, on the GPU: built here, loaded as a user would, against the known answers."""

from dataclasses import replace

import pytest
import torch

from benchmarks.h200_attention_cases import CASES, Case, faults
from benchmarks.h200_candidates import H200
from search_space.errors import InvalidField
from search_space.registry import check_supported
from tilewright.runtime import load
from workers.build import build_candidate
from workers.build.cuda import find_nvcc
from workers.build.result import BuildToolMissing


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_each_case_is_taken_and_can_fail(case: Case) -> None:
    names = {c.sketch for c in case.candidates()}
    assert names == {"cuda_attention_fwd", "cuda_attention_decode"} - (
        {"cuda_attention_fwd"} if case.kind == "huge" else set()
    )
    # The cases themselves can fail: zeros are a wrong answer to all of them.
    w = replace(case.workload(), batch=1)
    if case.expected is not None:
        zeros = torch.zeros(w.outputs()[0].shape)
        assert faults(case, case.inputs("cpu"), zeros, torch.zeros(w.outputs()[1].shape))


def test_a_head_dim_whose_rows_tma_cannot_read_is_refused_with_the_list() -> None:
    w = Case("O8 dim 59", "last column", {"seq": 64, "head_dim": 59, "dtype": "fp16"}).workload()
    with pytest.raises(InvalidField) as caught:
        check_supported(w, H200)
    assert caught.value.field == "head_dim"
    assert {"56", "64", "80", "256"} <= set(caught.value.allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_known_answer_comes_out_of_every_sketch(case: Case) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    try:
        find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    w = case.workload()
    inputs = case.inputs()
    for candidate in case.candidates():
        built = build_candidate(w, H200, candidate)
        assert built.artifact is not None, built.error
        o, lse = load(built.artifact)(*(inputs[o.name] for o in w.inputs()))
        torch.cuda.synchronize()
        assert not (found := faults(case, inputs, o, lse)), f"{candidate.sketch}: {found}"
