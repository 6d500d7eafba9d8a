import dataclasses
import math

import numpy as np
import pytest
from synthetic import TARGET, Tiled, gemm, latency_s, space

from cost_model.config import ModelConfig
from cost_model.dataset import Row, make_dataset
from cost_model.features import TaskContext
from cost_model.metrics import pairwise_accuracy, spearman
from cost_model.model import CostModel
from search_space.sketch import legal_points


def points(n: int, seed: int) -> tuple[list[dict[str, float]], list[float]]:
    """Features and latencies of n legal points of the tiled sketch, drawn without replacement."""
    s = space(Tiled())
    every = list(legal_points(s))
    chosen = np.random.default_rng(seed).choice(len(every), size=n, replace=False)
    knobs = [every[int(i)] for i in chosen]
    return [TaskContext.of(gemm(), TARGET).featurise(Tiled(), k) for k in knobs], [
        latency_s(s.candidate(k)) for k in knobs
    ]


def rows(n: int = 200, seed: int = 0) -> list[Row]:
    features, latencies = points(n, seed)
    best = min(latencies)
    return [Row(f, best / t, "task") for f, t in zip(features, latencies, strict=True)]


def test_it_learns_to_rank_unseen_candidates():
    model = CostModel().fit(make_dataset(rows(200, seed=0)))
    features, latencies = points(300, seed=1)
    predicted = model.predict(features).scores
    true = min(latencies) / np.array(latencies)
    accuracy, correlation = pairwise_accuracy(true, predicted), spearman(true, predicted)
    assert accuracy is not None
    assert accuracy > 0.85  # 0.5 is guessing
    assert correlation is not None
    assert correlation > 0.85


def test_fit_is_pure_and_deterministic():
    cold, data = CostModel(), make_dataset(rows())
    a, b = cold.fit(data), cold.fit(data)
    assert not cold.trained
    assert a.trained
    assert a == b
    features, _ = points(20, seed=3)
    np.testing.assert_array_equal(a.predict(features).scores, b.predict(features).scores)


@pytest.mark.parametrize(
    "data",
    [
        [],
        rows(1),
        rows(7),
        [Row(r.features, None, "task") for r in rows(50)],  # O11: all failures
        [Row(r.features, 0.5, "task") for r in rows(50)],  # constant labels
        [*rows(1), *(Row(r.features, None, "task") for r in rows(50, seed=2))],  # O11: one success
    ],
    ids=["none", "one", "too-few", "all-failures", "constant", "one-success"],
)
def test_what_teaches_nothing_leaves_the_model_as_it_was(data: list[Row]):
    cold = CostModel()
    assert cold.fit(make_dataset(data)) is cold
    warm = cold.fit(make_dataset(rows()))
    assert warm.fit(make_dataset(data)) is warm
    with pytest.raises(ValueError, match="not been trained"):
        cold.predict([{"x": 1.0}])


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e39])
def test_a_bad_score_is_no_row_and_no_failure(score: float):
    """O11: XGBoost raises on NaN, infinite and huge labels and swallows zeros."""
    bad = [Row(r.features, score, "task") for r in rows(30, seed=5)]
    good = rows(60)
    data = make_dataset([*bad, *good])
    assert len(data) == 60
    assert data.valid.all()
    assert CostModel().fit(data) == CostModel().fit(make_dataset(good))


def test_infinite_features_are_missing():
    data = rows(60)
    spoilt = [dataclasses.replace(r, features={**r.features, "knob.tile_m": math.inf}) for r in data]
    model = CostModel().fit(make_dataset(spoilt))
    assert np.isfinite(model.predict([{**data[0].features, "knob.tile_n": -math.inf, "new": 1.0}]).scores).all()


def test_failures_train_validity_and_never_the_score():
    good = rows(100)
    bad = [Row({**r.features, "knob.unroll": 64.0}, None, "task") for r in rows(60, seed=7)]
    with_failures, without = CostModel().fit(make_dataset([*good, *bad])), CostModel().fit(make_dataset(good))
    assert with_failures.score_trees == without.score_trees
    assert without.validity_trees is None
    p = with_failures.predict([good[0].features, bad[0].features])
    assert p.valid[0] > 0.9
    assert p.valid[1] < 0.1
    assert p.merit[1] < p.merit[0]
    assert without.predict([bad[0].features]).valid[0] == 1.0


def test_the_newest_rows_are_kept():
    data = make_dataset(rows(50), max_rows=20)
    assert len(data) == 20
    np.testing.assert_array_equal(data.scores, make_dataset(rows(50)).scores[-20:])


def test_features_of_another_sketch_may_be_missing_or_new():
    model = CostModel(ModelConfig(rounds=10)).fit(make_dataset(rows()))
    p = model.predict([{"never.seen": 3.0}, {}])
    assert p.scores[0] == p.scores[1]
    assert np.isfinite(p.scores).all()
    assert len(model.predict([]).scores) == 0
