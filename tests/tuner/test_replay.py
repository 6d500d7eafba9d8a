"""Records as lines, and a search narrowed to what was recorded."""

import json

import numpy as np
import pytest
from synthetic import FINE, Plain, Tiled, failed, gemm, latency_s, ok, record, space, task

from search_space.candidate import Candidate
from tuner.outcome import Outcome
from tuner.presets import preset
from tuner.records_file import BadRecords, parse_lines, to_line
from tuner.round import TaskSearch
from tuner.search.sampler import SpaceSampler

PLAIN = space(Plain()).candidate({"block": 4, "unroll": 1})
OTHER = space(Plain()).candidate({"block": 8, "unroll": 1})


def recorded(n: int) -> list[Candidate]:
    sampler = SpaceSampler(space(Tiled(tiles=FINE)), preset("standard").sampling)
    return sampler.fresh(n, (), np.random.default_rng(0))


def test_round_trip_and_the_latest_line_wins():
    far = task(gemm(1024))
    lines = [
        to_line(record(PLAIN, ok(2.0))),
        "",
        to_line(record(OTHER, failed(Outcome.WRONG_ANSWER))),
        to_line(record(PLAIN, ok(1.0), 0, far)),
        to_line(record(PLAIN, ok(1.5))),
        json.dumps({"workload": gemm().to_json(), "baseline": ok(1.0).to_json()}),
    ]
    found = parse_lines(lines)
    assert set(found) == {task(), far}
    assert {r.candidate: r.measurement for r in found[task()]} == {
        PLAIN: ok(1.5),
        OTHER: failed(Outcome.WRONG_ANSWER),
    }
    assert [r.measurement.latency_s for r in found[far]] == [1.0]
    assert parse_lines([]) == {}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2: JSONDecodeError"),
        ("[]", "line 2: TypeError"),
        ('{"workload": {"op": "fft"}}', "line 2: KeyError: 'target'"),
        (json.dumps({**json.loads(to_line(record(PLAIN, ok(1.0)))), "candidate": 3}), "candidate: must be an object"),
        (json.dumps({**json.loads(to_line(record(PLAIN, ok(1.0)))), "workload": {"op": "fft"}}), "op: must be one of"),
    ],
)
def test_a_bad_line_is_named(line: str, named: str):
    with pytest.raises(BadRecords, match=named):
        parse_lines([to_line(record(PLAIN, ok(1.0))), line])


def test_a_replay_proposes_recorded_candidates_alone_until_there_are_no_more():
    only = recorded(60)
    spaces = (space(Tiled(tiles=FINE)), space(Plain()))
    s = TaskSearch(task(), spaces, preset("standard"), 0, sketches={}, only=only)
    order: list[Candidate] = []
    while batch := s.next_batch():
        for candidate, _ in batch:
            s.observe(record(candidate, ok(latency_s(candidate)), len(order)))
            order.append(candidate)
        s.refit()
    assert sorted(c.key for c in order) == sorted(c.key for c in only)
    by_time = sorted(only, key=latency_s)
    assert np.mean([order.index(c) for c in by_time[:5]]) < 20  # 29.5 is chance
