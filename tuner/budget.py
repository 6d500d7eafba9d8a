"""When a task's search stops."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.job import StopReason
from tuner.presets import BudgetConfig
from tuner.task import TuningRecord


@dataclass(frozen=True)
class Spent:
    """What a task has used and reached. `stale` counts trials since the last improvement worth the name; `elapsed_s`
    and `trials_left` are the job's (None: no limit); `exhausted`: the space holds nothing new."""

    trials: int
    valid: int
    stale: int
    best_latency_s: float | None
    elapsed_s: float = 0.0
    trials_left: int | None = None
    exhausted: bool = False


def stop_reason(
    spent: Spent, config: BudgetConfig, max_seconds: float | None = None, roofline_s: float | None = None
) -> StopReason | None:
    """Why to propose nothing more, or None. Whatever ends a search whose trials all failed, the reason is
    NO_VALID_CANDIDATE. Times in seconds; `roofline_s` is the time that the device's roofs allow at best."""
    reason = _reason(spent, config, max_seconds, roofline_s)
    if reason is not None and spent.trials and not spent.valid:
        return StopReason.NO_VALID_CANDIDATE
    return reason


def _reason(
    spent: Spent, config: BudgetConfig, max_seconds: float | None, roofline_s: float | None
) -> StopReason | None:
    if spent.trials_left is not None and spent.trials_left <= 0:
        return StopReason.TRIALS
    if max_seconds is not None and spent.elapsed_s >= max_seconds:
        return StopReason.TIME
    if spent.exhausted:
        return StopReason.SPACE_EXHAUSTED
    if not spent.valid:
        return StopReason.NO_VALID_CANDIDATE if spent.trials >= config.hopeless else None
    if roofline_s is not None and spent.best_latency_s is not None:
        fraction = roofline_s / spent.best_latency_s
        # Well above 1 the roof is not one (data that a cache served, say), so it cannot tell that nothing is left.
        if config.near_roofline <= fraction <= config.roof_trust:
            return StopReason.NEAR_ROOFLINE
    if config.patience is not None and spent.stale >= config.patience:
        return StopReason.NO_IMPROVEMENT
    return None


def stale_trials(records: Sequence[TuningRecord], min_improvement: float) -> int:
    """Trials since the best last fell by at least `min_improvement` (relative); a retry counts with its trial."""
    best: float | None = None
    last_improved = -1
    seen: dict[int, int] = {}
    for record in records:
        place = seen.setdefault(record.trial, len(seen))
        latency = record.measurement.latency_s
        if latency is not None and (best is None or latency <= best * (1.0 - min_improvement)):
            best, last_improved = latency, place
    return len(seen) - 1 - last_improved if seen else 0
