"""Paired comparisons: ratios with intervals, and their means."""

import math
from collections.abc import Sequence

import numpy as np

SAMPLES = 4000


def paired_ratio(peer: Sequence[float], ours: Sequence[float], seed: int = 0) -> tuple[float, tuple[float, float]]:
    """(median of peer / ours over the rounds, its 95 % percentile-bootstrap interval); above 1: ours is faster."""
    ratios = np.asarray(peer) / np.asarray(ours)
    rng = np.random.default_rng(seed)
    medians = np.median(ratios[rng.integers(0, len(ratios), (SAMPLES, len(ratios)))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(np.median(ratios)), (float(low), float(high))


def geometric_mean(values: Sequence[float]) -> float:
    """ValueError for no values."""
    if not values:
        raise ValueError("a mean of no values")
    return math.exp(sum(map(math.log, values)) / len(values))
