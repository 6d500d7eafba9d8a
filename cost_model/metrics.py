"""How well predicted scores order candidates. s: true scores [n], p: predicted scores [n]; larger is better."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pairwise_accuracy(s: ArrayLike, p: ArrayLike, margin: float = 0.0) -> float | None:
    """Share of the pairs whose true scores differ by more than `margin` that p orders as s does; a tie in p counts a
    half. None when no pair differs."""
    true, predicted = _pair(s, p)
    i, j = np.triu_indices(len(true), k=1)
    difference = true[i] - true[j]
    counted = np.abs(difference) > margin
    if not counted.any():
        return None
    agreement = np.sign(difference[counted]) * np.sign(predicted[i][counted] - predicted[j][counted])
    return float(np.mean((agreement + 1.0) / 2.0))


def top_k_recall(s: ArrayLike, p: ArrayLike, k: int) -> float | None:
    """Share of the k truly best that are among the k predicted best; ties go to the earlier. None without rows."""
    true, predicted = _pair(s, p)
    k = min(k, len(true))
    if k <= 0:
        return None
    best = set(np.argsort(-true, kind="stable")[:k].tolist())
    chosen = set(np.argsort(-predicted, kind="stable")[:k].tolist())
    return len(best & chosen) / k


def best_of_top_k(s: ArrayLike, p: ArrayLike, k: int) -> float | None:
    """Best true score among the k predicted best over the best true score: what measuring only those would lose."""
    true, predicted = _pair(s, p)
    if not len(true) or k <= 0:
        return None
    chosen = np.argsort(-predicted, kind="stable")[:k]
    return float(true[chosen].max() / true.max())


def spearman(s: ArrayLike, p: ArrayLike) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where either side is constant."""
    true, predicted = _pair(s, p)
    if len(true) < 2 or np.ptp(true) == 0.0 or np.ptp(predicted) == 0.0:
        return None
    return float(np.corrcoef(_ranks(true), _ranks(predicted))[0, 1])


def _pair(s: ArrayLike, p: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    true, predicted = np.asarray(s, dtype=np.float64), np.asarray(p, dtype=np.float64)
    if true.shape != predicted.shape or true.ndim != 1:
        raise ValueError(f"scores of shape {true.shape} against predictions of shape {predicted.shape}")
    if not (np.isfinite(true).all() and np.isfinite(predicted).all()):
        raise ValueError("scores and predictions must be finite")
    return true, predicted


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: NDArray[np.float64] = last - (counts - 1) / 2.0
    return mean_rank[inverse]
