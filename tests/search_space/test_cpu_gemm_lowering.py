"""Every CPU GEMM sketch computes the right C, whatever the shape, layout, dtype and epilogue."""

import random
from collections.abc import Callable

import pytest

from search_space.gemm import EPILOGUES, GemmWorkload
from search_space.knob import Knobs
from search_space.registry import generate_sketches
from search_space.sketch import Space
from search_space.target import Target

Check = Callable[..., float]
DIMS = (1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 127)


def random_point(space: Space, rng: random.Random) -> Knobs:
    for _ in range(2000):
        knobs = {k.name: rng.choice(k.values) for k in space.knobs}
        if space.violated(knobs) is None:
            return knobs
    raise AssertionError(f"no legal point of {space.sketch.name} for {space.workload}")


def random_workload(rng: random.Random) -> GemmWorkload:
    dtype = rng.choice(("float32", "bfloat16", "float16"))
    return GemmWorkload(
        m=rng.choice(DIMS),
        n=rng.choice(DIMS),
        k=rng.choice((*DIMS, 300)),
        dtype_a=dtype,
        dtype_b=dtype,
        dtype_out=rng.choice((dtype, "float32")),
        batch=rng.choice((1, 3)),
        trans_a=rng.random() < 0.4,
        trans_b=rng.random() < 0.5,
        epilogue=rng.choice(EPILOGUES),
        b_constant=rng.random() < 0.4,
    )


@pytest.mark.parametrize("seed", range(8))
def test_random_legal_points_of_every_sketch(seed: int, cpu: Target, check: Check) -> None:
    rng = random.Random(seed)
    workload = random_workload(rng)
    for space in generate_sketches(workload, cpu):
        knobs = random_point(space, rng)
        assert check(workload, space.sketch.name, knobs, seed) <= 1.0, (space.sketch.name, knobs, workload)
