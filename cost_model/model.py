"""Says which candidate is likely fast: gradient-boosted trees over named features (XGBoost, arXiv:1603.02754)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xgboost
from numpy.typing import NDArray

from cost_model.config import ModelConfig
from cost_model.dataset import Dataset
from cost_model.features import to_matrix

# Below this spread the scores say nothing about what makes a candidate fast.
_MIN_SPREAD = 1e-6


@dataclass(frozen=True)
class Predictions:
    """For n candidates: `scores` [n], best / time as predicted (may leave (0, 1]); `valid` [n], the probability that
    the candidate builds, runs and is right (1 until failures were seen)."""

    scores: NDArray[np.float64]
    valid: NDArray[np.float64]

    @property
    def merit(self) -> NDArray[np.float64]:
        """[n] what to rank by: the score to be expected when a failure is worth nothing."""
        return np.maximum(self.scores, 0.0) * self.valid


@dataclass(frozen=True)
class CostModel:
    """Immutable: `fit` returns a new model. Deterministic for one dataset, config and XGBoost version.

    `names` are the columns the trees were grown on; a feature unknown to them is ignored, a missing one is NaN.
    """

    config: ModelConfig = field(default_factory=ModelConfig)
    names: tuple[str, ...] = ()
    score_trees: bytes | None = None  # XGBoost's own UBJSON
    validity_trees: bytes | None = None
    rows: int = 0

    @property
    def trained(self) -> bool:
        """Whether predictions mean anything; the search draws at random until they do."""
        return self.score_trees is not None

    def fit(self, data: Dataset) -> "CostModel":
        """A model that has learnt `data` alone, or this one unchanged when `data` cannot teach anything yet: fewer
        valid rows than `config.min_samples`, or scores that are all the same."""
        # Squared error and not a ranking loss: the prediction stays a score that a user can be shown and that can be
        # weighed against the probability of failing; scores are in (0, 1], so slow outliers cannot dominate it.
        valid = data.valid
        scores = data.scores[valid]
        if len(scores) < self.config.min_samples or np.ptp(scores) < _MIN_SPREAD:
            return self
        score = _grow(self.config, "reg:squarederror", self.config.rounds, data.features[valid], scores)
        failures = int((~valid).sum())
        validity = None
        if min(failures, len(scores)) >= self.config.validity_min_failures:
            labels = valid.astype(np.float32)
            validity = _grow(self.config, "binary:logistic", self.config.validity_rounds, data.features, labels)
        return dataclasses.replace(self, names=data.names, score_trees=score, validity_trees=validity, rows=len(data))

    def predict(self, rows: Sequence[Mapping[str, float]], shared: Mapping[str, float] | None = None) -> Predictions:
        """Predictions for feature mappings, `shared` being what every row has; ValueError when not trained."""
        if self.score_trees is None:
            raise ValueError("the cost model has not been trained")
        if not rows:
            return Predictions(np.zeros(0), np.ones(0))
        matrix = _matrix(to_matrix(rows, self.names, shared))
        scores = _booster(self.score_trees, self.config).predict(matrix)
        if self.validity_trees is None:
            valid = np.ones(len(rows))
        else:
            valid = _booster(self.validity_trees, self.config).predict(matrix)
        return Predictions(np.asarray(scores, dtype=np.float64), np.asarray(valid, dtype=np.float64))


def _grow(config: ModelConfig, objective: str, rounds: int, x: NDArray[np.float32], y: NDArray[np.float32]) -> bytes:
    params = {
        "objective": objective,
        "tree_method": "hist",
        "max_depth": config.max_depth,
        "eta": config.learning_rate,
        "min_child_weight": config.min_child_weight,
        "subsample": config.subsample,
        "colsample_bytree": config.colsample_bytree,
        "lambda": config.reg_lambda,
        "nthread": config.threads,
        "seed": config.seed,
        "verbosity": 0,
    }
    return bytes(xgboost.train(params, _matrix(x, y), num_boost_round=rounds).save_raw("ubj"))


def _matrix(x: NDArray[np.float32], y: NDArray[np.float32] | None = None) -> xgboost.DMatrix:
    return xgboost.DMatrix(x, label=y, missing=np.nan, nthread=1)


@functools.lru_cache(maxsize=8)  # a round asks one model many times; parsing the trees costs more than asking
def _booster(raw: bytes, config: ModelConfig) -> xgboost.Booster:
    booster = xgboost.Booster({"nthread": config.threads})
    booster.load_model(bytearray(raw))
    return booster
