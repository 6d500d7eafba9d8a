"""GEMMs whose right answer is known exactly, and shapes on which others went wrong."""

from collections.abc import Callable

import pytest
import torch

from search_space.errors import InvalidField
from search_space.gemm import EPILOGUES, GemmWorkload
from search_space.knob import Knobs
from search_space.registry import generate_sketches
from search_space.sketch import Space, legal_points
from search_space.target import Target
from search_space.workload import parse_workload

Check = Callable[..., float]
Run = Callable[..., torch.Tensor]


def first_choice(space: Space) -> Knobs:
    """The expert's first choice, or the first legal point."""
    seeds = space.sketch.seeds(space.workload, space.target)
    return seeds[0] if seeds else next(legal_points(space))


def check_all_sketches(workload: GemmWorkload, cpu: Target, check: Check) -> set[str]:
    spaces = generate_sketches(workload, cpu)
    for space in spaces:
        knobs = first_choice(space)
        assert check(workload, space.sketch.name, knobs) <= 1.0, (space.sketch.name, knobs)
    return {s.sketch.name for s in spaces}


@pytest.mark.parametrize(("m", "n", "k"), [(4, 768, 2048), (1, 1000, 512), (100, 99, 1001), (1, 4097, 3)])
def test_float16_tails_are_right_to_the_last_row_and_column(m: int, n: int, k: int, cpu: Target, check: Check) -> None:
    assert check_all_sketches(GemmWorkload(m, n, k, "float16", "float16", "float16"), cpu, check)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 64), (33, 5, 9), (130, 2, 17)])
def test_awkward_shapes(shape: tuple[int, int, int], trans_b: bool, cpu: Target, check: Check) -> None:
    workload = GemmWorkload(*shape, "float32", "float32", "float32", trans_b=trans_b)
    assert "cpu_gemm_loop" in check_all_sketches(workload, cpu, check)


@pytest.mark.parametrize(("epilogue", "dtype"), [*((e, "float32") for e in EPILOGUES), ("bias+gelu", "bfloat16")])
def test_epilogues(epilogue: str, dtype: str, cpu: Target, check: Check) -> None:
    workload = GemmWorkload(17, 40, 260, dtype, dtype, dtype, batch=2, epilogue=epilogue, b_constant=True)
    names = check_all_sketches(workload, cpu, check)
    assert {"cpu_gemm_packed", "cpu_gemm_prepacked", "cpu_gemm_splitk", "cpu_gemm_stream", "cpu_gemm_tile"} <= names


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_sums_are_kept_in_float32(dtype: str, trans_b: bool, cpu: Target, run: Run) -> None:
    """4096 ones add up to 4096; a float16 accumulator stops at 2048, a bfloat16 one at 256."""
    workload = GemmWorkload(16, 16, 4096, dtype, dtype, dtype, trans_b=trans_b)
    ones = [torch.ones(o.shape, dtype=getattr(torch, o.dtype)) for o in workload.inputs()]
    for space in generate_sketches(workload, cpu):
        out = run(workload, space.sketch.name, first_choice(space), ones)
        assert torch.equal(out, torch.full_like(out, 4096.0)), space.sketch.name


@pytest.mark.parametrize("trans_b", [False, True])
def test_cancelling_sums(trans_b: bool, cpu: Target, run: Run) -> None:
    """Large terms that cancel, small enough that every order of adding them is exact in float32: the rest is 1."""
    k = 512
    workload = GemmWorkload(8, 24, k, "float32", "float32", "float32", trans_b=trans_b)
    a = torch.ones(8, k)
    a[:, 1::2] = -1.0
    b = torch.full((k, 24), 2.0**14)
    b[-1] = 2.0**14 - 1.0
    stored = b.mT.contiguous() if trans_b else b
    for space in generate_sketches(workload, cpu):
        out = run(workload, space.sketch.name, first_choice(space), [a, stored])
        assert torch.equal(out, torch.ones(8, 24)), space.sketch.name


def test_infinities_stay_where_they_are(cpu: Target, run: Run) -> None:
    """A shifted last vector must not multiply another column's infinity by zero."""
    workload = GemmWorkload(3, 5, 37, "float32", "float32", "float32", trans_b=True)
    a, b = torch.ones(3, 37), torch.ones(5, 37)
    b[2, 30] = float("inf")
    for space in generate_sketches(workload, cpu):
        out = run(workload, space.sketch.name, first_choice(space), [a, b])
        assert torch.isinf(out[:, 2]).all(), space.sketch.name
        assert torch.equal(out[:, [0, 1, 3, 4]], torch.full((3, 4), 37.0)), space.sketch.name


def test_smallest_gemm_has_a_space_that_ends(cpu: Target) -> None:
    spaces = generate_sketches(GemmWorkload(1, 1, 1, "float32", "float32", "float32"), cpu)
    points = [p for s in spaces for p in legal_points(s)]
    assert 1 <= len(points) <= 8


def test_a_zero_length_reduction_is_refused_at_submit() -> None:
    with pytest.raises(InvalidField) as refused:
        parse_workload({"op": "gemm", "m": 5, "n": 7, "k": 0, "dtype": "float32"})
    assert refused.value.field == "k"
