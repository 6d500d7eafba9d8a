"""The measuring protocol: check, probe, race, repeat until sure; and the final that compares the best side by side.

The device's half (buffers, guards, clock) is a `Bed`; this file is the same for every device. Times are seconds a call.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers.median_interval import FEWEST, median_ci95

K = TypeVar("K")  # a kernel that was loaded onto the bed
K_contra = TypeVar("K_contra", contravariant=True)
Clock = Callable[[], float]

# One timed batch of a short kernel lasts at least this long, so that reading the clock (about 0.1 us) and the first
# call after it do not show in the quotient.
BATCH_SECS = 1e-3
MAX_CALLS = 100_000
MAX_REPEATS = 200
# A kernel so slow that its share of time is long over is given up after this many times, whatever the policy's fewest.
FEWEST_SLOW = 3
SLOW_SHARES = 4.0


class Rejected(Exception):
    """The candidate's fault, found while it was checked or timed; `outcome` says which."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Bed(Protocol[K_contra]):
    """One task's inputs and references on one device."""

    def check(self, kernel: K_contra) -> float | None:
        """Run once on each input set (random, adversarial): output poisoned with NaN and guarded before, compared
        with the reference after, guards and inputs verified. Returns the largest relative error; raises Rejected."""

    def time(self, kernel: K_contra, calls: int, warm_up: bool = False) -> float:
        """Seconds that `calls` calls took together; `warm_up`: after one call that is not timed."""

    def verify_guards(self) -> None:
        """Rejected when the memory around the outputs, or an input, was written since the last check."""


@dataclass(frozen=True)
class Timing:
    """`run_secs` one time per repeat; `calls` inner calls each time is the mean of."""

    run_secs: tuple[float, ...]
    calls: int
    max_rel_err: float | None
    raced_out: bool = False

    @property
    def ci95(self) -> tuple[float, float] | None:
        return median_ci95(self.run_secs)


def measure(bed: Bed[K], kernel: K, policy: MeasurePolicy, best_latency_s: float | None, clock: Clock) -> Timing:
    """One candidate, alone on the device. Raises Rejected for a wrong answer or a time that is no time."""
    error = bed.check(kernel)  # warms the caches, too
    start = clock()
    calls, probe = calls_per_batch(bed, kernel)
    times = [seconds_per_call(bed, kernel, calls)]
    limit = math.inf if best_latency_s is None else policy.race_factor * best_latency_s
    raced_out = min(probe, times[0]) > limit
    while not raced_out and not enough(times, policy, clock() - start):
        times.append(seconds_per_call(bed, kernel, calls))
    bed.verify_guards()
    return Timing(tuple(times), calls, error, raced_out)


def enough(times: Sequence[float], policy: MeasurePolicy, spent_s: float) -> bool:
    """The interval is narrow, or the candidate's share of time is over."""
    if len(times) < max(policy.min_repeats, FEWEST):
        return len(times) >= FEWEST_SLOW and spent_s > SLOW_SHARES * policy.time_share_s
    return settled(times, policy) or spent_s >= policy.time_share_s or len(times) >= MAX_REPEATS


def settled(times: Sequence[float], policy: MeasurePolicy) -> bool:
    """The 95 % interval of the median is narrower than `target_ci` of it."""
    interval = median_ci95(times)
    return interval is not None and interval[1] - interval[0] <= policy.target_ci * statistics.median(times)


def calls_per_batch(bed: Bed[K], kernel: K) -> tuple[int, float]:
    """(inner calls that make one batch last BATCH_SECS, the last reading in seconds a call); 1 for a long kernel."""
    calls = 1
    while True:
        spent = bed.time(kernel, calls)
        if not math.isfinite(spent) or spent >= BATCH_SECS or calls >= MAX_CALLS:
            return calls, spent / calls
        # Grow at most tenfold at a time: a first reading of (nearly) nothing says little.
        calls = min(MAX_CALLS, max(2 * calls, math.ceil(calls * min(10.0, 1.1 * BATCH_SECS / max(spent, 1e-9)))))


def seconds_per_call(bed: Bed[K], kernel: K, calls: int, warm_up: bool = False) -> float:
    """One time; one that is zero, negative or not finite is taken again over more calls, then refused."""
    for more in (1, 4, 16):
        spent = bed.time(kernel, calls * more, warm_up)
        if math.isfinite(spent) and spent > 0.0:
            return spent / (calls * more)
    raise Rejected(Outcome.RUN_ERROR, f"the clock gave {spent} s for {calls * more} calls, three times over")


@dataclass(frozen=True)
class Contest(Generic[K]):
    """Times of every contestant that got through: one per round, the same rounds for all."""

    times: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str]


def contest(
    bed: Bed[K], kernels: Mapping[str, tuple[K, int]], policy: MeasurePolicy, rng: random.Random, clock: Clock
) -> Contest[K]:
    """Many rounds; in each, every contestant (kernel, inner calls) once, in random order: a fixed order rewards
    whoever runs while the device is cool. More of them where a busy host left the ratios unsure: an interval from a
    fifth to a thousand says nothing. A contestant that fails leaves; its earlier rounds are dropped."""
    standing = dict(kernels)
    times: dict[str, list[float]] = {name: [] for name in standing}
    failures: dict[str, str] = {}
    ends = clock() + policy.final_time_s
    for done in range(policy.final_rounds_most):
        if not standing or (done >= FEWEST and clock() >= ends):
            break
        if done >= policy.final_rounds and decided([times[name] for name in standing], policy):
            break
        for name in rng.sample(sorted(standing), len(standing)):
            kernel, calls = standing[name]
            try:
                times[name].append(seconds_per_call(bed, kernel, calls, warm_up=True))
            except Rejected as fault:
                failures[name] = f"{fault.outcome}: {fault}"
                del standing[name]
    return Contest({name: tuple(times[name]) for name in standing}, failures)


def decided(times: Sequence[Sequence[float]], policy: MeasurePolicy) -> bool:
    """Every contestant's ratio to the fastest (by median), paired by rounds, has a narrow 95 % interval."""
    fastest = min(times, key=statistics.median)
    for others in times:
        ratios = [a / b for a, b in zip(others, fastest, strict=True)]
        interval = median_ci95(ratios)
        if interval is None or interval[1] - interval[0] > policy.final_target_ci * statistics.median(ratios):
            return False
    return True
