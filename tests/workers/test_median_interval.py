"""The interval of the median against values worked out by hand and against its own promise of coverage."""

import random

import pytest

from workers.median_interval import FEWEST, median_ci95, rank


@pytest.mark.parametrize(
    # n, r: from the binomial distribution; the classic table (e.g. Conover, Practical Nonparametric Statistics).
    ("n", "r"),
    [(5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (21, 6), (30, 10), (50, 18), (100, 40)],
)
def test_rank_matches_the_table_of_the_sign_test(n: int, r: int) -> None:
    assert rank(n) == r


def test_too_few_samples_have_no_interval() -> None:
    assert median_ci95([1.0] * (FEWEST - 1)) is None
    assert median_ci95([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)


def test_interval_covers_the_true_median_95_times_in_100() -> None:
    rng = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = median_ci95([rng.lognormvariate(0.0, 1.0) for _ in range(21)]) or (0.0, 0.0)
        hits += low <= 1.0 <= high
    assert 0.945 <= hits / 2000 <= 0.995
