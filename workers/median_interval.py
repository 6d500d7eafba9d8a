"""A confidence interval of the median that assumes nothing about how times are distributed."""

import math
from collections.abc import Sequence

# The fewest samples whose range holds the median with 95 % confidence: 1 - 2 * 0.5^6 = 0.969.
FEWEST = 6


def rank(n: int, confidence: float = 0.95) -> int:
    """The largest r (from 1) with P(the median lies in [x_(r), x_(n+1-r)]) >= confidence; 0 when n is too small.

    The number of samples below the median is binomial(n, 1/2), so the interval misses it with probability
    2 P(B < r) (order statistics; e.g. David and Nagaraja, Order Statistics, section 7.1).
    """
    tail, miss = 0.0, (1.0 - confidence) / 2.0
    for r in range(n // 2 + 1):
        tail += math.comb(n, r) * 0.5**n
        if tail > miss:
            return r
    return n // 2


def median_ci95(samples: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median of `samples`; None for fewer than 6."""
    r = rank(len(samples))
    if r == 0:
        return None
    ordered = sorted(samples)
    return ordered[r - 1], ordered[-r]
