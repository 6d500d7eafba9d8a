"""What the search takes from records: training rows and openers."""

import dataclasses

import pytest
from synthetic import IDENTITY, TARGET, Plain, Tiled, failed, gemm, ok, record, space, task

from search_space.sketch import Sketch
from tuner.dataset import Featuriser, training_rows
from tuner.outcome import Outcome
from tuner.presets import SamplingConfig
from tuner.search.openers import distance, openers
from tuner.search.sampler import SpaceSampler

SKETCHES: dict[str, Sketch] = {"plain": Plain(), "tiled": Tiled()}
A, B, C, D = (space(Plain()).candidate({"block": b, "unroll": 1}) for b in (1, 2, 4, 8))


def test_scores_are_best_over_time_within_a_task_and_an_environment():
    small, big = task(gemm(64, 64, 64)), task()
    updated = dataclasses.replace(ok(1.0), identity=dataclasses.replace(IDENTITY, driver="newer"))
    records = [
        record(A, ok(2.0), 0, big),
        record(B, ok(1.0), 1, big),
        record(C, failed(), 2, big),
        record(D, failed(Outcome.WORKER_LOST), 3, big),
        record(A, ok(0.01), 0, small),
        record(A, updated, 0, big),
    ]
    rows = training_rows(records, Featuriser(SKETCHES, TARGET, None))
    assert [r.score for r in rows] == [0.5, 1.0, None, 1.0, 1.0]  # the lost worker's is no row at all
    assert len({r.group for r in rows}) == 3
    assert rows[0].features["log_size.m"] == 8.0
    assert rows[3].features["log_size.m"] == 6.0


def test_records_of_unknown_sketches_or_versions_are_left_out():
    old = dataclasses.replace(A, version=0)
    stranger = dataclasses.replace(A, sketch="gone")
    rows = training_rows([record(old, ok(1.0)), record(stranger, ok(1.0))], Featuriser(SKETCHES, TARGET, None))
    assert rows == []


def test_openers_are_seeds_in_turns_then_winners_of_the_nearest_tasks():
    samplers = [SpaceSampler(space(s), SamplingConfig()) for s in (Plain(), Tiled(with_seed=True))]
    near, far = task(gemm(512)), task(gemm(4096, 4096, 4096))
    related = [
        record(A, ok(1.0), 0, far),
        record(B, ok(2.0), 1, far),
        record(C, ok(3.0), 0, near),
        record(D, ok(2.0), 1, near),
        record(dataclasses.replace(D, version=7), ok(1.0), 0, task(gemm(300))),  # of another version
    ]
    found = openers(samplers, task(), related, transfer=2)
    assert [c.sketch for c in found] == ["tiled", "plain", "plain"]
    assert found[1:] == (D, A)
    assert openers(samplers, task(), related, transfer=1)[1:] == (D,)
    assert openers(samplers, task(), related, transfer=0)[1:] == ()


def test_distance_between_tasks():
    assert distance(task(), task()) == 0.0
    assert distance(task(), task(gemm(1024))) == 2.0
    assert distance(task(), task(gemm(1024, 32))) == pytest.approx((4 + 9) ** 0.5)
    assert distance(task(), task(gemm(trans_b=True))) == 4.0
    assert distance(task(), task(target=dataclasses.replace(TARGET, cores=4))) == 4.0
