"""Rows that a cost model learns from: features with a score or a failure, never a number for a failure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_model.features import column_names, to_matrix


@dataclass(frozen=True)
class Row:
    """`score` is best / time within `group`, in (0, 1]; None for a failure. Rows of one group can be compared."""

    features: Mapping[str, float]
    score: float | None
    group: str


@dataclass(frozen=True)
class Dataset:
    """`features` [n, len(names)] float32; `scores` [n] float32, NaN where `valid` [n] is False; `groups` [n] int."""

    names: tuple[str, ...]
    features: NDArray[np.float32]
    scores: NDArray[np.float32]
    valid: NDArray[np.bool_]
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)


def make_dataset(rows: Sequence[Row], max_rows: int | None = None) -> Dataset:
    """The last `max_rows` of `rows`. A row whose score is not a finite number in (0, 1] is left out: a zero run time
    or a NaN says nothing, neither about speed nor about validity."""
    usable = [row for row in rows if row.score is None or _is_score(row.score)]
    if max_rows is not None:
        usable = usable[-max_rows:] if max_rows else []
    names = column_names([row.features for row in usable])
    index: dict[str, int] = {}
    groups = [index.setdefault(row.group, len(index)) for row in usable]
    return Dataset(
        names=names,
        features=to_matrix([row.features for row in usable], names),
        scores=np.array([math.nan if row.score is None else row.score for row in usable], dtype=np.float32),
        valid=np.array([row.score is not None for row in usable], dtype=np.bool_),
        groups=np.array(groups, dtype=np.int64),
    )


def _is_score(value: float) -> bool:
    return math.isfinite(value) and 0.0 < value <= 1.0
