"""Who is best, once the finalists were measured again: paired ratios, their intervals, and a fixed rule for ties."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from search_space.candidate import Candidate
from tuner.best import BestConfig, Contestant, Final
from tuner.outcome import Outcome
from tuner.presets import FinalConfig
from tuner.roofs import Roofs
from tuner.search.state import rank_key
from tuner.task import Task, TuningRecord

VENDOR_PREFIX = "vendor:"
_UNKNOWN_COMPLEXITY = 1_000_000

Interval = tuple[float, float]


def finalists(records: Sequence[TuningRecord], k: int) -> list[Candidate]:
    """The k distinct valid candidates of the lowest latency, fastest first; ties by trial, then key."""
    valid = sorted((r for r in records if r.measurement.outcome is Outcome.OK), key=rank_key)
    return list(dict.fromkeys(r.candidate for r in valid))[:k]


def promote(
    final: Final,
    task: Task,
    roofs: Roofs | None,
    complexity: Mapping[str, int],
    trials: int,
    rng: np.random.Generator,
    config: FinalConfig | None = None,
    incumbent: Candidate | None = None,
) -> BestConfig | None:
    """The winner of `final`, or None when no schedule of ours got through it.

    `complexity`: sketch name -> Sketch.complexity. `trials`: how many the task's search took. `incumbent`: what is
    served for the task today. ValueError when the contestants' rounds cannot be paired.
    """
    config = config or FinalConfig()
    entries = _usable(final)
    ours = [c for c in entries if c.candidate is not None and c.artifact is not None]
    if not ours:
        return None
    winner = _winner(ours, complexity, config, rng, incumbent)
    assert winner.candidate is not None
    assert winner.artifact is not None
    latency, latency_ci = median_interval(np.array(winner.run_secs), config, rng)
    vendors = [c for c in entries if c.name.startswith(VENDOR_PREFIX)]
    vendor = min(vendors, key=lambda c: (_median(c), c.name), default=None)
    speedup, speedup_ci = paired_ratio(vendor, winner, config, rng) if vendor else (None, None)
    bound, fraction, ridge = _roofline(task, roofs, latency)
    return BestConfig(
        candidate=winner.candidate,
        artifact=winner.artifact,
        latency_s=latency,
        latency_ci95_s=latency_ci,
        baseline_name=vendor.name.removeprefix(VENDOR_PREFIX) if vendor else None,
        baseline_latency_s=_median(vendor) if vendor else None,
        speedup=speedup,
        speedup_ci95=speedup_ci,
        served="vendor" if _may_be_slower(speedup, speedup_ci, config) else "tilewright",
        identity=final.identity,
        roofline_bound=bound,
        roofline_fraction=fraction,
        ridge_flop_per_byte=ridge,
        max_rel_err=winner.max_rel_err,
        trials=trials,
    )


def settled(best: BestConfig, config: FinalConfig | None = None) -> bool:
    """Whether its final says anything: on a host that was too busy the interval spans more than `config.widest`."""
    return not _is_wide(best.speedup_ci95 or best.latency_ci95_s, config or FinalConfig())


def _may_be_slower(speedup: float | None, interval: Interval | None, config: FinalConfig) -> bool:
    """Below 1, or undecided: ours has to show that it is faster, the vendor's kernel needs to show nothing."""
    if speedup is None or interval is None:
        return False
    return speedup < 1.0 or (interval[0] < 1.0 and _is_wide(interval, config))


def _is_wide(interval: Interval, config: FinalConfig) -> bool:
    return interval[1] > config.widest * interval[0]


def paired_ratio(a: Contestant, b: Contestant, config: FinalConfig, rng: np.random.Generator) -> tuple[float, Interval]:
    """(median over rounds of a's time / b's time, its bootstrap interval): pairing cancels what a round has in common,
    such as the clock at that moment."""
    return median_interval(np.array(a.run_secs) / np.array(b.run_secs), config, rng)


def median_interval(x: NDArray[np.float64], config: FinalConfig, rng: np.random.Generator) -> tuple[float, Interval]:
    """(median of x [rounds], percentile bootstrap interval of it: Efron and Tibshirani, 1993, chapter 13)."""
    draws = rng.integers(len(x), size=(config.resamples, len(x)))
    medians = np.median(x[draws], axis=1)
    tail = 50.0 * (1.0 - config.confidence)
    low, high = np.percentile(medians, (tail, 100.0 - tail))
    return float(np.median(x)), (float(low), float(high))


def _winner(
    ours: Sequence[Contestant],
    complexity: Mapping[str, int],
    config: FinalConfig,
    rng: np.random.Generator,
    incumbent: Candidate | None,
) -> Contestant:
    """The fastest, unless others tie with it: then the incumbent, then the simplest sketch, then the smallest key, so
    that two searches which found the same candidates crown the same one."""
    fastest = min(ours, key=lambda c: (_median(c), c.name))
    tied = [fastest]
    for other in sorted(ours, key=lambda c: c.name):
        if other is not fastest:
            _, (low, _) = paired_ratio(other, fastest, config, rng)
            if low <= 1.0 + config.tie_ratio:
                tied.append(other)

    def rule(c: Contestant) -> tuple[bool, int, str]:
        assert c.candidate is not None
        simple = complexity.get(c.candidate.sketch, _UNKNOWN_COMPLEXITY)
        return c.candidate != incumbent, simple, c.candidate.key

    return min(tied, key=rule)


def _usable(final: Final) -> list[Contestant]:
    """Contestants whose every time is finite and positive, all with the same number of rounds."""
    entries = [c for c in final.contestants if c.run_secs and c.name not in final.failures]
    entries = [c for c in entries if np.isfinite(c.run_secs).all() and min(c.run_secs) > 0.0]
    rounds = {len(c.run_secs) for c in entries}
    if len(rounds) > 1:
        raise ValueError(f"contestants with different numbers of rounds cannot be paired: {sorted(rounds)}")
    return entries


def _median(c: Contestant) -> float:
    return float(np.median(c.run_secs))


def _roofline(task: Task, roofs: Roofs | None, latency_s: float) -> tuple[str | None, float | None, float | None]:
    if roofs is None:
        return None, None, None
    time_s, bound = roofs.time_s(task.workload)
    peak, rate = roofs.rates(task.workload)
    return bound, time_s / latency_s, peak / rate
