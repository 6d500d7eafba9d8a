"""Constants of the cost model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """`min_samples` valid, differing scores must be seen before the model is asked; before that the search is random.

    `max_rows`: the newest rows kept for a refit, so that its cost is bounded. `validity_min_failures`: failures (and
    valid ones) needed before a second model predicts validity. One thread: the rows are few, the cores belong to the
    measuring, and sums of floats keep their order.
    """

    rounds: int = 120
    max_depth: int = 6
    learning_rate: float = 0.12
    min_child_weight: float = 1.0
    subsample: float = 0.9
    colsample_bytree: float = 0.9
    reg_lambda: float = 1.0
    threads: int = 1
    seed: int = 0
    min_samples: int = 8
    max_rows: int = 4096
    validity_min_failures: int = 4
    validity_rounds: int = 60
