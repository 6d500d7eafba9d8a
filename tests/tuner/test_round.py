"""The whole search of a task against a latency function whose optimum is known."""

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import (
    FINE,
    ROOFS,
    Plain,
    Thorny,
    Tiled,
    failed,
    gemm,
    latency_s,
    ok,
    optimum_s,
    record,
    space,
    task,
)

from cost_model.config import ModelConfig
from search_space.candidate import Candidate
from search_space.sketch import Space
from tuner.job import StopReason
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import Trial
from tuner.presets import EvolutionConfig, Preset, SamplingConfig, preset
from tuner.round import TaskSearch
from tuner.search.propose import at_random
from tuner.task import TuningRecord

Measure = Callable[[Candidate], Measurement]


# The same search with less of everything, for what does not depend on how well it does.
LIGHT = Preset(
    "light",
    sampling=SamplingConfig(tries=16, repair_steps=4),
    evolution=EvolutionConfig(population=64, generations=1),
    model=ModelConfig(rounds=20),
)


def truth(candidate: Candidate) -> Measurement:
    return ok(latency_s(candidate))


def search(spaces: Sequence[Space], seed: int = 0, chosen: Preset = LIGHT, **given: object) -> TaskSearch:
    return TaskSearch(task(), spaces, chosen, seed, sketches={}, **given)  # type: ignore[arg-type]


def drive(s: TaskSearch, trials: int, measure: Measure = truth, batch: int | None = None) -> list[Candidate]:
    """Run until `trials` or exhaustion, as the runner does; the proposed candidates in order."""
    order: list[Candidate] = []
    while len(order) < trials:
        s.refit()
        proposals = s.next_batch(min(batch or s.preset.batch_size, trials - len(order)))
        if not proposals:
            break
        for candidate, _ in proposals:
            s.observe(record(candidate, measure(candidate), len(order)))
            order.append(candidate)
    return order


SMALL = (space(Tiled()), space(Plain()))
LARGE = (space(Tiled(tiles=FINE)), space(Plain()))


def test_it_finds_the_known_optimum_of_a_listed_space():
    """64 trials of 7,000 legal points: mostly the very best, never more than a step of the steepest knob away."""
    best = optimum_s(SMALL)
    ends = []
    for seed in range(2, 5):
        s = search(SMALL, seed, preset("standard"))
        drive(s, 64)
        assert s.best_latency_s is not None
        ends.append(s.best_latency_s / best)
    assert statistics.median(ends) == 1.0
    assert max(ends) < 1.4


def test_it_beats_random_search_on_a_large_space():
    ours, random = [], []
    for seed in range(3):
        s = search(LARGE, seed, preset("standard"))
        drawn = at_random(s.state, 64, np.random.default_rng(seed))
        random.append(min(map(latency_s, drawn)))
        drive(s, 64)
        assert s.best_latency_s is not None
        ours.append(s.best_latency_s)
    assert statistics.mean(ours) < 0.85 * statistics.mean(random)
    assert max(ours) < max(random)


def test_the_same_seed_gives_the_same_search_and_another_seed_another():
    """O13: latencies are a function of the candidate alone."""
    a, b = (drive(search(LARGE, seed=7), 40) for _ in range(2))
    assert a == b
    assert drive(search(LARGE, seed=8), 40) != a


def test_seeds_come_first_and_count_once():
    spaces = (space(Tiled(with_seed=True)), space(Plain()))
    order = drive(search(spaces), 32)
    assert order[0].knobs["tile_n"] == 16
    assert order[0].knobs["unroll"] == 1
    assert order.count(order[0]) == 1


def test_a_tiny_space_ends_exhausted_with_every_point_once():
    """O12a."""
    s = search((space(Plain()),))
    order = drive(s, 64)
    assert len(order) == len(set(order)) == 9
    assert s.next_batch(8) == []
    assert s.stop_reason(trials_left=55) is StopReason.SPACE_EXHAUSTED


def test_exhaustion_is_known_before_an_empty_batch():
    s = search((space(Plain()),))
    assert len(drive(s, 9)) == 9
    assert s.stop_reason(trials_left=55) is StopReason.SPACE_EXHAUSTED


def test_a_large_space_with_few_legal_points_is_found_exhausted():
    s = search((space(Thorny()),))
    order = drive(s, 1000)
    assert len(order) == len(set(order)) == len(FINE)
    assert s.stop_reason() is StopReason.SPACE_EXHAUSTED


@given(seed=st.integers(0, 2**32), batch=st.integers(3, 17), fate=st.integers(0, 2**16))
@settings(max_examples=6, deadline=None)
def test_nothing_is_ever_proposed_twice(seed: int, batch: int, fate: int):
    """Whatever comes back: times, failures or nothing at all (a lost worker)."""
    rng = np.random.default_rng(fate)

    def moody(candidate: Candidate) -> Measurement:
        ends = (truth(candidate), failed(), failed(Outcome.WORKER_LOST))
        return ends[int(rng.integers(3))]

    s = search(LARGE, seed)
    order = drive(s, 40, moody, batch)
    assert len(order) == len(set(order)) == 40


def test_a_dead_runners_trials_are_not_proposed_again():
    s = search((space(Plain()),))
    first = [c for c, _ in search((space(Plain()),), seed=5).next_batch(4)]
    s.reserved([Trial(i, i, 0, c) for i, c in enumerate(first)])
    rest = [c for c, _ in s.next_batch(16)]
    assert len(rest) == 5
    assert not set(first) & set(rest)


def test_resume_knows_the_best_the_past_and_the_model():
    before = search(LARGE)
    past = drive(before, 40)
    after = search(LARGE, records=before.state.records)
    assert after.best_latency_s == before.best_latency_s
    assert after.trials == 40
    assert after.refit()
    assert after.model.trained
    assert not set(past) & {c for c, _ in after.next_batch(24)}


def test_a_model_learnt_elsewhere_ranks_the_first_batch():
    """Transfer: records of related shapes train the model and open with their winner."""
    other = task(gemm(512, 256, 256))
    teacher = TaskSearch(other, LARGE, LIGHT, 3, sketches={})
    drive(teacher, 40, batch=20)
    related = [record(r.candidate, r.measurement, r.trial, other, "job_0") for r in teacher.state.records]
    s = search(LARGE, related=related[::-1])
    assert s.refit()
    batch = s.next_batch()
    assert batch[0][0] == min(related, key=lambda r: latency_s(r.candidate)).candidate
    assert all(score is not None and 0.0 <= score <= 1.0 for _, score in batch)
    cold = search(LARGE)
    assert all(score is None for _, score in cold.next_batch())


def test_all_failures_then_one_success_then_normal():
    """O11: the loop goes on, random until there is something to learn from."""
    s = search(LARGE)
    seen = 0

    def measure(candidate: Candidate) -> Measurement:
        nonlocal seen
        seen += 1
        return truth(candidate) if seen == 20 or seen > 32 else failed()

    drive(s, 32, measure)
    assert not s.refit()
    assert not s.model.trained
    assert s.best_latency_s is not None
    drive(s, 32, measure)
    assert s.refit()
    assert s.trials == 64


def test_everything_fails():
    s = search(LARGE)
    drive(s, 16, lambda _: failed())
    assert s.stop_reason(trials_left=10) is None
    assert s.stop_reason(trials_left=0) is StopReason.NO_VALID_CANDIDATE
    assert s.stop_reason(elapsed_s=5.0, max_seconds=5.0) is StopReason.NO_VALID_CANDIDATE
    assert s.finalists() == []
    assert s.best_latency_s is None
    drive(s, LIGHT.budget.hopeless, lambda _: failed())
    assert s.stop_reason(trials_left=10**6) is StopReason.NO_VALID_CANDIDATE


def test_near_the_roof_it_stops():
    s = search(LARGE, roofs=ROOFS)
    roof, _ = ROOFS.time_s(s.state.task.workload)
    drive(s, 16)
    assert s.stop_reason() is None
    (last, _), *_ = s.next_batch(1)
    s.observe(record(last, ok(roof / 0.98), 16))
    assert s.stop_reason() is StopReason.NEAR_ROOFLINE


def test_finalists_are_the_fastest_distinct_ones():
    s = search(LARGE)
    drive(s, 32)
    fastest = sorted((r.candidate for r in s.state.records), key=latency_s)
    assert s.finalists(8) == fastest[:8]
    assert len(s.finalists()) == LIGHT.final.finalists


def test_progress_is_the_best_so_far():
    s = search(LARGE)
    drive(s, 3, batch=1)
    times: list[float] = [latency_s(r.candidate) for r in s.state.records]
    p = s.progress(2, 4.0)
    assert p.history == (times[0], min(times[:2]), min(times))
    assert (p.index, p.weight, p.trials, p.flops) == (2, 4.0, 3, 2 * 256**3)
    assert p.group == "gemm:float32/float32:cpu:test-arch"


def test_no_space_is_an_error():
    with pytest.raises(ValueError, match="no sketch"):
        search(())


def test_a_retry_is_not_another_trial():
    s = search(LARGE)
    (candidate, _), *_ = s.next_batch(1)
    lost = record(candidate, failed(Outcome.WORKER_LOST))
    s.observe(lost)
    s.observe(TuningRecord(lost.task, candidate, 0, 1, truth(candidate), lost.job_id))
    assert s.trials == 1
    assert s.best_latency_s == latency_s(candidate)
