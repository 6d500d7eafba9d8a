"""The curve of the best so far, and the events that tell of it."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_nouns import candidates, claimed, gemm, job_spec, measured

from tuner.views import NotFound


def run_trials(store, latencies):
    lease = claimed(store, job_spec(max_trials=len(latencies)))
    task = lease.tasks[0].task_id
    trials = store.reserve(lease, task, candidates(len(latencies)))
    for trial, latency in zip(trials, latencies, strict=True):
        store.commit(lease, task, measured(trial, latency))
    return lease


def test_few_trials_are_all_shown(store):
    lease = run_trials(store, [None, 0.5, 0.7, 0.2, None])
    points = store.progress(lease.job_id, 0, 100)
    assert [(p.ordinal, p.latency_s, p.best_latency_s) for p in points] == [
        (0, None, None),
        (1, 0.5, 0.5),
        (2, 0.7, 0.5),
        (3, 0.2, 0.2),
        (4, None, 0.2),
    ]
    assert {p.task_index for p in points} == {0}


def improvements(latencies):
    found, best = [], None
    for ordinal, latency in enumerate(latencies):
        if latency is not None and (best is None or latency < best):
            found.append(ordinal)
            best = latency
    return found


def test_many_trials_are_thinned_and_no_improvement_is_lost(store):
    rng = random.Random(5)
    latencies = [None if rng.random() < 0.2 else rng.uniform(0.5, 1.0) for _ in range(99)]
    lease, improving = run_trials(store, latencies), improvements(latencies)
    assert 3 < len(improving) < 15
    for points in (-1, 0, 1, 15, 20, 40, 64, 98, 99, 1000):
        shown = store.progress(lease.job_id, 0, points)
        ordinals = [p.ordinal for p in shown]
        assert ordinals == sorted(set(ordinals))
        assert set(improving) <= set(ordinals)
        assert ordinals[-1] == 98, "the curve reaches the present"
        assert len(shown) <= max(points, len(improving) + 1)
        assert len(shown) >= min(points, 99) // 2, "the room is used"
        assert shown[-1].best_latency_s == latencies[improving[-1]]
        bests = [p.best_latency_s for p in shown if p.best_latency_s is not None]
        assert bests == sorted(bests, reverse=True)
    assert [p.latency_s for p in shown] == latencies


def test_a_task_without_trials_has_no_points(store):
    lease = claimed(store, job_spec(gemm(), gemm(m=9)))
    assert store.progress(lease.job_id, 1, 10) == []
    with pytest.raises(NotFound):
        store.progress(lease.job_id, 2, 10)


def test_events_tell_each_change_in_order(store):
    lease = run_trials(store, [0.5, None, 0.2])
    events = store.events(lease.job_id, 0, 100)
    told = [(e.kind, e.data.get("state") or e.data.get("outcome") or e.data.get("latency_s")) for e in events]
    assert told == [
        ("job", "queued"),
        ("job", "running"),
        ("trial", "OK"),
        ("best", 0.5),
        ("trial", "BUILD_ERROR"),
        ("trial", "OK"),
        ("best", 0.2),
    ]
    assert [e.sequence for e in events] == list(range(1, 8))
    assert store.job(lease.job_id).last_event == 7
    assert [e.sequence for e in store.events(lease.job_id, 4, 2)] == [5, 6]
    assert store.events(lease.job_id, 7, 10) == []
    assert events[2].data["knobs"] == {"tile": 0, "pack": True, "order": "mn"}


def test_a_transaction_that_fails_leaves_no_event(store):
    lease = claimed(store, job_spec())
    before = store.job(lease.job_id).last_event
    with pytest.raises(NotFound):
        store.finish_task(lease, 10**6, "trials")
    assert store.job(lease.job_id).last_event == before


def test_sequences_have_no_gap_when_many_write_at_once(store):
    lease = claimed(store, job_spec(max_trials=40))
    task = lease.tasks[0].task_id
    trials = store.reserve(lease, task, candidates(40))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda t: store.commit(lease, task, measured(t, 1.0 / (t.ordinal + 1))), trials))
    events = store.events(lease.job_id, 0, 1000)
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert sum(e.kind == "trial" for e in events) == 40
    bests = [e.data["latency_s"] for e in events if e.kind == "best"]
    assert bests == sorted(bests, reverse=True)
