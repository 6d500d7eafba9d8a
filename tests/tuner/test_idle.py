"""Idle time of a device, from intervals that were worked out by hand."""

import pytest

from search_space.environment import Observation
from tuner.idle import BUILT_AT, idle_seconds, idle_share
from tuner.measurement import Measurement
from tuner.outcome import Outcome


def measured(built: float | None, start: float, end: float) -> Measurement:
    details = {} if built is None else {BUILT_AT: built}
    seen = Observation(details=details)
    return Measurement(Outcome.RUN_ERROR, interval=(start, end), observation=seen)


def test_waiting_behind_another_measurement_is_not_idle() -> None:
    assert idle_seconds([(0.0, 1.0), (0.0, 2.0)], [(1.0, 2.0), (2.0, 3.0)]) == pytest.approx(1.0)


def test_nothing_waits_while_the_compiler_works() -> None:
    assert idle_seconds([(10.0, 10.5)], [(0.0, 1.0), (10.5, 11.0)]) == pytest.approx(0.5)


def test_overlapping_waits_count_once() -> None:
    assert idle_seconds([(0.0, 4.0), (1.0, 4.0)], [(2.0, 3.0), (4.0, 5.0)]) == pytest.approx(3.0)


def test_the_share_is_of_the_wall_time_between_the_first_build_and_the_last_measurement() -> None:
    share = idle_share([measured(0.0, 1.0, 2.0), measured(0.5, 2.0, 5.0), measured(8.0, 8.0, 10.0)])
    assert share == pytest.approx(0.1)


def test_records_that_do_not_tell_are_left_out() -> None:
    assert idle_share([measured(None, 0.0, 1.0)]) is None
    assert idle_share([]) is None
