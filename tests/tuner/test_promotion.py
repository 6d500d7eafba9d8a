import dataclasses
import math

import numpy as np
import pytest
from synthetic import IDENTITY, ROOFS, Plain, Tiled, failed, gemm, ok, record, space, task

from search_space.candidate import Candidate
from tuner.best import BestConfig, Contestant, Final
from tuner.presets import FinalConfig
from tuner.promotion import finalists, median_interval, promote, settled
from tuner.roofs import Roofs

COMPLEXITY = {"plain": 1, "tiled": 2}
PLAIN = space(Plain()).candidate({"block": 4, "unroll": 1})
TILED = [
    space(Tiled()).candidate({"tile_m": m, "tile_n": 32, "tile_k": 16, "unroll": 4, "pack": True, "order": "mnk"})
    for m in (4, 8, 16)
]
ROUNDS = 21
# What a whole round shares (a clock that falls), far above the differences between the contestants.
DRIFT = np.linspace(1.0, 1.3, ROUNDS)


def times(latency_s: float, noise: float = 0.001, seed: int = 0) -> tuple[float, ...]:
    jitter = np.random.default_rng(seed).normal(1.0, noise, ROUNDS)
    return tuple((latency_s * DRIFT * jitter).tolist())


def entry(candidate: Candidate, latency_s: float, seed: int, noise: float = 0.001) -> Contestant:
    return Contestant(candidate.key, times(latency_s, noise, seed=seed), candidate, f"sha-{candidate.key}", 1e-6)


def vendor(latency_s: float, name: str = "torch") -> Contestant:
    return Contestant(f"vendor:{name}", times(latency_s, seed=99))


def run(
    *contestants: Contestant,
    roofs: Roofs | None = ROOFS,
    failures: dict[str, str] | None = None,
    incumbent: Candidate | None = None,
) -> BestConfig | None:
    final = Final(contestants, IDENTITY, (0.0, 1.0), failures or {})
    return promote(final, task(), roofs, COMPLEXITY, 64, np.random.default_rng(0), incumbent=incumbent)


def won(*contestants: Contestant, incumbent: Candidate | None = None) -> BestConfig:
    best = run(*contestants, incumbent=incumbent)
    assert best is not None
    return best


def test_the_fastest_wins_and_its_figures_are_right():
    best = won(entry(TILED[0], 1.00e-3, 1), entry(TILED[1], 0.90e-3, 2), vendor(1.08e-3))
    assert best.candidate == TILED[1]
    assert best.artifact == f"sha-{TILED[1].key}"
    assert best.latency_s == pytest.approx(0.9e-3 * 1.15, rel=0.01)
    assert best.speedup == pytest.approx(1.2, rel=0.002)  # paired: the drift of 30 % cancels
    assert best.speedup_ci95 is not None
    low, high = best.speedup_ci95
    assert low <= best.speedup <= high
    assert high - low < 0.004
    assert best.latency_ci95_s[0] <= best.latency_s <= best.latency_ci95_s[1]
    assert (best.baseline_name, best.served, best.trials) == ("torch", "tilewright", 64)
    assert best.identity == IDENTITY
    assert best.max_rel_err == 1e-6


def test_roofline():
    best = won(entry(TILED[0], 1e-3, 1))
    flops, least = 2 * 256**3, 3 * 256 * 256 * 4
    assert best.roofline_bound == "compute"
    assert best.roofline_fraction == pytest.approx(flops / 1e11 / best.latency_s)
    assert best.ridge_flop_per_byte == 5.0
    assert flops / 1e11 > least / 2e10
    unknown = run(entry(TILED[0], 1e-3, 1), roofs=None)
    assert unknown is not None
    assert (unknown.roofline_bound, unknown.roofline_fraction, unknown.ridge_flop_per_byte) == (None, None, None)


def test_inside_the_noise_the_incumbent_stays():
    entries = entry(TILED[0], 1.000e-3, 1), entry(TILED[1], 1.001e-3, 2), entry(PLAIN, 1.001e-3, 3)
    assert won(*entries, incumbent=TILED[1]).candidate == TILED[1]
    assert won(*entries).candidate == PLAIN


def test_inside_the_noise_the_simplest_wins():
    assert won(entry(TILED[0], 1.000e-3, 1), entry(PLAIN, 1.001e-3, 2)).candidate == PLAIN


def test_inside_the_noise_and_as_simple_the_smallest_key_wins():
    entries = [entry(c, 1e-3 * (1 + i * 1e-4), i) for i, c in enumerate(TILED)]
    expected = min(TILED, key=lambda c: c.key)
    assert won(*entries).candidate == expected
    assert won(*entries[::-1]).candidate == expected


def test_outside_the_noise_neither_counts():
    entries = entry(TILED[0], 1.00e-3, 1), entry(TILED[1], 1.03e-3, 2), entry(PLAIN, 1.03e-3, 3)
    assert won(*entries, incumbent=TILED[1]).candidate == TILED[0]


def test_a_slower_schedule_is_promoted_but_the_vendor_served():
    """O17(b): every candidate is slower than the baseline."""
    best = won(entry(TILED[0], 1.5e-3, 1), vendor(1.0e-3), vendor(1.2e-3, "slower"))
    assert best.served == "vendor"
    assert best.speedup == pytest.approx(1 / 1.5, rel=0.002)
    assert best.baseline_name == "torch"
    assert best.baseline_latency_s == pytest.approx(1.15e-3, rel=0.01)


def disturbed(contestant: Contestant, seed: int) -> Contestant:
    """Times that a busy host stretched, each by up to a thousand."""
    stretch = np.exp(np.random.default_rng(seed).uniform(0.0, np.log(1024.0), ROUNDS))
    return dataclasses.replace(contestant, run_secs=tuple((np.array(contestant.run_secs) * stretch).tolist()))


def test_a_final_that_decided_nothing_promotes_nobody_as_faster():
    """The median says 3, the interval from two thirds to fourteen: the vendor's kernel goes on being served."""
    noisy = won(disturbed(entry(TILED[0], 1e-3, 1), 6), disturbed(vendor(4e-3), 56))
    assert noisy.speedup is not None
    assert noisy.speedup > 1.5
    assert noisy.speedup_ci95 is not None
    assert noisy.speedup_ci95[0] < 1.0 < 1.5 < noisy.speedup_ci95[1]
    assert noisy.served == "vendor"
    assert not settled(noisy)
    calm = won(entry(TILED[0], 1e-3, 1), vendor(4e-3))
    assert calm.served == "tilewright"
    assert settled(calm)


def test_a_wide_interval_that_leaves_no_doubt_is_enough():
    best = won(disturbed(entry(TILED[0], 1e-9, 1), 2), disturbed(vendor(1e-3), 4))
    assert best.speedup_ci95 is not None
    assert best.speedup_ci95[0] > 1.0
    assert best.served == "tilewright"
    assert not settled(best)


def test_a_narrow_interval_round_one_serves_by_its_median():
    assert won(entry(TILED[0], 1e-3, 1, noise=0.05), vendor(1.01e-3)).served == "tilewright"


def test_without_a_vendor_there_is_no_speedup():
    best = won(entry(TILED[0], 1e-3, 1))
    assert (best.baseline_name, best.baseline_latency_s, best.speedup, best.speedup_ci95) == (None,) * 4
    assert best.served == "tilewright"


def test_only_valid_contestants_count():
    """O22: [1.0, NaN, inf, -inf] has one best."""
    bad = [
        dataclasses.replace(entry(c, 1e-4, 1), run_secs=(x,) * ROUNDS)
        for c, x in zip(TILED, (math.nan, math.inf, -math.inf))
    ]
    assert won(entry(PLAIN, 1e-3, 1), *bad).candidate == PLAIN
    assert run(*bad, vendor(1e-3)) is None
    crashed = entry(TILED[0], 1e-4, 1)
    unbuilt = dataclasses.replace(entry(TILED[1], 1e-4, 1), artifact=None)
    best = run(crashed, unbuilt, entry(PLAIN, 1e-3, 1), failures={crashed.name: "SIGSEGV"})
    assert best is not None
    assert best.candidate == PLAIN
    assert run() is None


def test_rounds_that_cannot_be_paired_are_refused():
    short = dataclasses.replace(entry(TILED[0], 1e-3, 1), run_secs=(1e-3, 1e-3))
    with pytest.raises(ValueError, match=r"rounds cannot be paired: \[2, 21\]"):
        run(short, vendor(1e-3))


def test_promotion_is_deterministic():
    entries = (entry(TILED[0], 1e-3, 1), entry(PLAIN, 1.001e-3, 2), vendor(1e-3))
    assert run(*entries) == run(*entries)


def test_the_interval_of_a_median_covers_it():
    """Over 200 samples of a normal law the 95 % interval holds the true median about 95 times in 100."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        _, (low, high) = median_interval(rng.normal(5.0, 1.0, 41), FinalConfig(resamples=400), rng)
        hits += low <= 5.0 <= high
    assert 178 <= hits <= 200


def test_finalists():
    ends = [ok(3e-3), failed(), ok(1e-3), ok(2e-3), ok(1e-3)]
    candidates = [*TILED, PLAIN, TILED[2]]
    records = [record(c, m, i, task(gemm())) for i, (c, m) in enumerate(zip(candidates, ends, strict=True))]
    assert finalists(records, 8) == [TILED[2], PLAIN, TILED[0]]
    assert finalists(records, 1) == [TILED[2]]
    assert finalists([], 8) == []
