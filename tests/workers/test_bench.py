"""The measuring protocol on a bed whose clock is told: what is accepted, refused, raced out and repeated."""

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest

from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers import bench
from workers.bench import Rejected
from workers.median_interval import median_ci95

POLICY = MeasurePolicy(min_repeats=5, time_share_s=10.0)


class ToldBed:
    """Each kernel is an iterator of seconds a call; checks count."""

    def __init__(self) -> None:
        self.checked = 0
        self.guards_verified = 0
        self.order: list[str] = []
        self.names: dict[int, str] = {}

    def check(self, kernel: Iterator[float]) -> float:
        self.checked += 1
        return 1e-7

    def time(self, kernel: Iterator[float], calls: int, warm_up: bool = False) -> float:
        self.order.append(self.names.get(id(kernel), "?"))
        return next(kernel) * calls

    def verify_guards(self) -> None:
        self.guards_verified += 1


def ticking(step: float) -> Callable[[], float]:
    counter = itertools.count()
    return lambda: next(counter) * step


def test_a_steady_kernel_stops_at_the_fewest_repeats_that_have_an_interval() -> None:
    bed = ToldBed()
    timing = bench.measure(bed, itertools.repeat(0.002), POLICY, None, ticking(0.01))
    assert timing.run_secs == (0.002,) * 6
    assert timing.ci95 == (0.002, 0.002)
    assert timing.calls == 1
    assert bed.checked == 1
    assert bed.guards_verified == 1


def test_a_noisy_kernel_is_repeated_until_its_time_share_is_spent() -> None:
    rng = random.Random(3)
    noisy = (0.002 * rng.uniform(1.0, 2.0) for _ in itertools.count())
    timing = bench.measure(ToldBed(), noisy, POLICY, None, ticking(0.5))
    assert 20 <= len(timing.run_secs) <= 26  # 10 s of a clock that steps by 0.5 s


def test_repeats_end_once_the_interval_is_narrow() -> None:
    rng = random.Random(3)
    noisy = (0.002 * rng.gauss(1.0, 0.02) for _ in itertools.count())
    timing = bench.measure(ToldBed(), noisy, POLICY, None, ticking(0.01))
    low, high = timing.ci95 or (0.0, 1.0)
    assert high - low <= 0.02 * 0.0021
    assert 6 < len(timing.run_secs) < bench.MAX_REPEATS


def test_a_short_kernel_is_timed_in_batches() -> None:
    timing = bench.measure(ToldBed(), itertools.repeat(1e-6), POLICY, None, ticking(0.01))
    assert timing.calls * 1e-6 >= bench.BATCH_SECS
    assert timing.run_secs[0] == pytest.approx(1e-6)


def test_a_loser_of_the_race_gets_no_more_time() -> None:
    timing = bench.measure(ToldBed(), itertools.repeat(0.0041), POLICY, 0.002, ticking(0.01))
    assert timing.raced_out
    assert timing.run_secs == (0.0041,)
    assert timing.ci95 is None
    close = bench.measure(ToldBed(), itertools.repeat(0.0039), POLICY, 0.002, ticking(0.01))
    assert not close.raced_out


def test_one_slow_reading_does_not_lose_the_race() -> None:
    readings = itertools.chain([0.009], itertools.repeat(0.002))
    timing = bench.measure(ToldBed(), readings, POLICY, 0.002, ticking(0.01))
    assert not timing.raced_out
    assert timing.run_secs == (0.002,) * 6


def test_a_very_slow_kernel_is_given_up_after_three_times() -> None:
    timing = bench.measure(ToldBed(), itertools.repeat(30.0), POLICY, None, ticking(30.0))
    assert timing.run_secs == (30.0,) * 3
    assert not timing.raced_out


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(Rejected) as fault:
        bench.measure(ToldBed(), itertools.repeat(bad), POLICY, None, ticking(0.01))
    assert fault.value.outcome is Outcome.RUN_ERROR


def test_a_single_bad_reading_is_taken_again_over_more_calls() -> None:
    readings = itertools.chain([0.002, 0.002, 0.0, math.nan], itertools.repeat(0.002))
    timing = bench.measure(ToldBed(), readings, POLICY, None, ticking(0.01))
    assert timing.run_secs == (0.002,) * 6


def test_a_contest_gives_every_contestant_the_same_rounds_in_random_order() -> None:
    bed = ToldBed()
    kernels = {name: (itertools.repeat(0.001 * i), 1) for i, name in enumerate("abc", start=1)}
    bed.names = {id(k): name for name, (k, _) in kernels.items()}
    contest = bench.contest(bed, kernels, MeasurePolicy(final_rounds=21), random.Random(0), ticking(0.0))
    assert {name: len(times) for name, times in contest.times.items()} == {"a": 21, "b": 21, "c": 21}
    assert contest.times["b"] == (0.002,) * 21
    rounds = ["".join(bed.order[i : i + 3]) for i in range(0, 63, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) >= 4


def test_a_contestant_that_fails_leaves_and_the_others_keep_their_rounds() -> None:
    failing = itertools.chain([0.001] * 4, itertools.repeat(math.nan))
    kernels = {"good": (itertools.repeat(0.002), 1), "bad": (failing, 1)}
    contest = bench.contest(ToldBed(), kernels, MeasurePolicy(final_rounds=9), random.Random(0), ticking(0.0))
    assert list(contest.times) == ["good"]
    assert len(contest.times["good"]) == 9
    assert "RUN_ERROR" in contest.failures["bad"]


def test_a_contest_ends_after_a_whole_round_once_its_time_is_over() -> None:
    kernels = {"a": (itertools.repeat(0.001), 1), "b": (itertools.repeat(0.001), 1)}
    policy = MeasurePolicy(final_rounds=50, final_time_s=10.0)
    contest = bench.contest(ToldBed(), kernels, policy, random.Random(0), ticking(1.0))
    assert len(contest.times["a"]) == len(contest.times["b"])
    assert 6 <= len(contest.times["a"]) < 50


def noisy(latency_s: float, spread: float, rng: random.Random) -> Iterator[float]:
    return (latency_s * rng.uniform(1.0, spread) for _ in itertools.count())


def test_a_contest_goes_on_until_its_ratios_are_sure() -> None:
    """Times that a busy host stretches up to a hundredfold for 60 rounds, then calm."""
    rng = random.Random(5)
    busy = {name: itertools.islice(noisy(0.001, 100.0, rng), 60) for name in "ab"}
    kernels = {name: (itertools.chain(times, itertools.repeat(0.001)), 1) for name, times in busy.items()}
    policy = MeasurePolicy(final_rounds=21, final_rounds_most=400)
    contest = bench.contest(ToldBed(), kernels, policy, random.Random(0), ticking(0.0))
    assert 60 < len(contest.times["a"]) == len(contest.times["b"]) < 400
    low, high = median_ci95([a / b for a, b in zip(contest.times["a"], contest.times["b"], strict=True)]) or (0.0, 9.0)
    assert high - low < 0.1


def test_a_contest_that_stays_unsure_ends() -> None:
    rng = random.Random(5)
    kernels = {name: (noisy(0.001, 1000.0, rng), 1) for name in "ab"}
    policy = MeasurePolicy(final_rounds=21, final_rounds_most=50)
    contest = bench.contest(ToldBed(), kernels, policy, random.Random(0), ticking(0.0))
    assert len(contest.times["a"]) == 50
    contest = bench.contest(ToldBed(), kernels, MeasurePolicy(final_time_s=30.0), random.Random(0), ticking(1.0))
    assert 21 < len(contest.times["a"]) < MeasurePolicy().final_rounds_most
