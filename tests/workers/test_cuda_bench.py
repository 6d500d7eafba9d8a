"""The GPU protocol's arithmetic, on the CPU: what is accepted, what is not, and paired ratios."""

import random

import pytest
import torch

from search_space.gemm import GemmWorkload
from workers import cuda_bench as bench

WORKLOADS = (
    {"m": 24, "n": 64, "k": 2048, "dtype": "bf16", "trans_b": True},
    {"m": 24, "n": 64, "k": 2048, "dtype": "fp16", "trans_a": True},
    {"m": 17, "n": 33, "k": 513, "batch": 2, "dtype": "bf16"},
    {"m": 24, "n": 64, "k": 512, "dtype": "bf16", "epilogue": "bias+gelu"},
)


def operands(w: GemmWorkload, tensors: bench.Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    a = tensors["a"].transpose(-1, -2) if w.trans_a else tensors["a"]
    b = tensors["b"].transpose(-1, -2) if w.trans_b else tensors["b"]
    return a.float(), b.float()


def product(w: GemmWorkload, tensors: bench.Tensors) -> torch.Tensor:
    """float32 accumulation, one rounding."""
    a, b = operands(w, tensors)
    out = a @ b + (tensors["bias"].float() if "bias" in tensors else 0.0)
    result: torch.Tensor = bench.apply_epilogue(w.epilogue, out).to(getattr(torch, w.dtype_out))
    return result


@pytest.mark.parametrize("data", WORKLOADS, ids=lambda d: f"{d['dtype']}-{d.get('epilogue', 'none')}")
def test_float32_accumulation_is_accepted_and_16_bit_accumulation_is_not(data: dict[str, object]) -> None:
    w = GemmWorkload.from_json(data)
    tensors = bench.make_sets(w, l2_bytes=1, seed=5, device="cpu").sets[0]
    reference = bench.make_reference(w, tensors)
    right = product(w, tensors)
    accepted, error = bench.check_output(right, reference)
    assert accepted
    assert error < 4e-3
    a, b = operands(w, tensors)
    rough = torch.zeros_like(right)
    for k in range(0, w.k, 16):
        rough = (rough.float() + a[..., k : k + 16] @ b[..., k : k + 16, :]).to(right.dtype)
    if "bias" in tensors:
        rough = (rough.float() + tensors["bias"].float()).to(right.dtype)
    rough = bench.apply_epilogue(w.epilogue, rough.float()).to(right.dtype)
    assert not bench.check_output(rough, reference)[0]


def test_one_element_that_was_never_written_is_refused() -> None:
    w = GemmWorkload.from_json(WORKLOADS[0])
    tensors = bench.make_sets(w, l2_bytes=1, seed=5, device="cpu").sets[0]
    reference, right = bench.make_reference(w, tensors), product(w, tensors)
    right[3, 5] = float("nan")
    assert not bench.check_output(right, reference)[0]


def test_cancelling_sums_are_exact_and_catch_a_partial_sum_rounded_to_16_bits() -> None:
    w = GemmWorkload.from_json({"m": 12, "n": 40, "k": 8192, "dtype": "bf16", "trans_b": True})
    tensors, exact = bench.cancelling_set(w, device="cpu")
    assert set(exact.float().unique().tolist()) <= {-2.0, -1.0, 1.0, 2.0, 4.0}
    assert torch.equal(product(w, tensors), exact)
    a, b = operands(w, tensors)
    half = w.k // 2
    parts = [(a[:, s] @ b[s]).to(torch.bfloat16) for s in (slice(0, half), slice(half, w.k))]
    assert not torch.equal(parts[0] + parts[1], exact)


def test_input_sets_exceed_l2_and_say_so_when_they_cannot() -> None:
    w = GemmWorkload.from_json({"m": 16, "n": 256, "k": 256, "dtype": "bf16"})
    l2 = 10 * w.footprint_bytes()
    sets = bench.make_sets(w, l2, seed=1, device="cpu")
    assert len(sets.sets) == 40
    assert sets.cold
    assert not torch.equal(sets.sets[0]["a"], sets.sets[1]["a"])
    assert not bench.make_sets(w, 1000 * w.footprint_bytes(), seed=1, device="cpu").cold


def test_ratios_are_paired_within_rounds() -> None:
    drift = [1.0 + 0.1 * i for i in range(30)]  # the card slows down: both suffer alike
    median, low, high = bench.paired_ratio([1.2 * d for d in drift], drift, random.Random(0))
    assert median == pytest.approx(1.2)
    assert low == pytest.approx(1.2)
    assert high == pytest.approx(1.2)
