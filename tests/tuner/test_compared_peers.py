"""What a final says of users' own kernels."""

import numpy as np
import pytest
from store_nouns import IDENTITY, best_config

from search_space.candidate import Candidate
from tuner.best import Contestant, Final
from tuner.peers import compared_peers
from tuner.presets import FinalConfig

OURS = Candidate.of("tile", 1, {"v": 1})


def test_a_peer_is_told_with_its_ratio_to_the_winner_and_a_failed_one_with_its_reason() -> None:
    times = (1e-6, 2e-6, 1e-6, 2e-6, 1e-6, 2e-6)
    entries = (
        Contestant(OURS.key, times, OURS, "digest"),
        Contestant("vendor:torch", times),
        Contestant("peer:mine:fast", tuple(0.5 * t for t in times)),
    )
    final = Final(entries, IDENTITY, (0.0, 1.0), {"peer:mine:wrong": "WRONG_ANSWER: off by one", OURS.key + "x": "?"})
    lines = list(compared_peers(final, None, FinalConfig(), np.random.default_rng(0)))
    assert lines == ["peer:mine:fast takes 0.75 us", "peer:mine:wrong was left out: WRONG_ANSWER: off by one"]


def test_the_ratio_is_paired_and_above_one_where_ours_is_faster() -> None:
    drift = [1e-6 * (1.0 + 0.1 * i) for i in range(8)]
    entries = (Contestant(OURS.key, tuple(drift), OURS, "d"), Contestant("peer:m:f", tuple(1.25 * t for t in drift)))
    winner = best_config(chosen=OURS)
    (line,) = compared_peers(Final(entries, IDENTITY, (0.0, 1.0)), winner, FinalConfig(), np.random.default_rng(0))
    assert line.endswith("1.250 [1.250, 1.250] times ours")


@pytest.mark.parametrize("name", ["vendor:torch", OURS.key])
def test_nothing_is_said_of_anybody_else(name: str) -> None:
    final = Final((Contestant(name, (1.0,)),), IDENTITY, (0.0, 1.0))
    assert list(compared_peers(final, None, FinalConfig(), np.random.default_rng(0))) == []
