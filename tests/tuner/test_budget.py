import dataclasses

import pytest
from synthetic import Plain, failed, ok, record, space

from search_space.errors import InvalidField
from tuner.budget import Spent, stale_trials, stop_reason
from tuner.job import PRESETS as JOB_PRESETS
from tuner.job import StopReason
from tuner.presets import PRESETS, BudgetConfig, preset

CONFIG = BudgetConfig(patience=10, near_roofline=0.95, hopeless=20)
RUNNING = Spent(trials=8, valid=6, stale=3, best_latency_s=2e-3, elapsed_s=10.0, trials_left=56)


@pytest.mark.parametrize(
    ("changes", "limits", "expected"),
    [
        ({}, {}, None),
        ({"trials_left": 0}, {}, StopReason.TRIALS),
        ({"trials_left": None}, {}, None),
        ({"elapsed_s": 10.0}, {"max_seconds": 10.0}, StopReason.TIME),
        ({"elapsed_s": 9.99}, {"max_seconds": 10.0}, None),
        ({"exhausted": True}, {}, StopReason.SPACE_EXHAUSTED),
        ({"stale": 10}, {}, StopReason.NO_IMPROVEMENT),
        ({"stale": 9}, {}, None),
        ({}, {"roofline_s": 1.9e-3}, StopReason.NEAR_ROOFLINE),
        ({}, {"roofline_s": 1.8e-3}, None),
        ({}, {"roofline_s": 2.5e-3}, None),  # a roof that was beaten by a quarter is none
        ({"valid": 0, "best_latency_s": None}, {}, None),
        ({"valid": 0, "best_latency_s": None, "trials": 20}, {}, StopReason.NO_VALID_CANDIDATE),
        ({"valid": 0, "best_latency_s": None, "trials_left": 0}, {}, StopReason.NO_VALID_CANDIDATE),
        ({"valid": 0, "best_latency_s": None, "exhausted": True}, {}, StopReason.NO_VALID_CANDIDATE),
        ({"valid": 0, "trials": 0, "best_latency_s": None, "elapsed_s": 11.0}, {"max_seconds": 10.0}, StopReason.TIME),
        ({"trials_left": 0, "elapsed_s": 99.0, "exhausted": True}, {"max_seconds": 10.0}, StopReason.TRIALS),
    ],
)
def test_when_to_stop(changes: dict[str, object], limits: dict[str, float], expected: StopReason | None):
    assert stop_reason(dataclasses.replace(RUNNING, **changes), CONFIG, **limits) is expected  # type: ignore[arg-type]


def test_stale_trials_count_from_the_last_real_improvement():
    points = space(Plain())
    candidates = [points.candidate({"block": b, "unroll": u}) for b in (1, 2, 4, 8) for u in (1, 2)]
    ends = [failed(), ok(1.0), ok(0.9), ok(0.899), failed(), ok(1.2), ok(0.5), failed()]
    records = [record(c, m, i) for i, (c, m) in enumerate(zip(candidates, ends, strict=True))]
    assert stale_trials([], 0.005) == 0
    assert stale_trials(records[:1], 0.005) == 1  # one trial, no best
    assert stale_trials(records[:3], 0.005) == 0
    assert stale_trials(records[:6], 0.005) == 3  # 0.899 is no improvement of half a percent
    assert stale_trials(records[:6], 0.001) == 2
    assert stale_trials(records, 0.005) == 1
    assert stale_trials([*records, record(candidates[7], failed(), 7)], 0.005) == 1  # a retry of trial 7


def test_presets_are_those_a_job_may_name():
    assert set(PRESETS) == set(JOB_PRESETS)
    assert [preset(n).name for n in PRESETS] == list(PRESETS)
    with pytest.raises(InvalidField, match="preset") as fault:
        preset("hasty")
    assert fault.value.allowed == tuple(PRESETS)
