"""Devices by heartbeat, counts of lookups, and the stored cost models."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_nouns import IDENTITY, claimed, device, gemm, job_spec

from search_space.target import TargetQuery
from tuner.roofs import Roofs
from tuner.views import BadCursor


def test_a_device_lives_until_its_heartbeat_expires(store, clock):
    roofs = Roofs({"float32": 1e11}, 2e10)
    store.heartbeat_devices("r1", [device(), device("cpu:b", healthy=False, detail="hot \x00", roofs=roofs)], 30.0)
    seen = store.devices(clock.at + 29.0)
    assert [(d.device_id, d.healthy, d.alive) for d in seen] == [("cpu:b", False, True), ("cpu:host", True, True)]
    assert seen[0].detail == "hot �"
    assert (seen[1].runner_id, seen[1].target, seen[1].last_seen_at) == ("r1", device().target, clock.at)
    assert [d.alive for d in store.devices(clock.at + 30.0)] == [False, False]


def test_a_runner_that_came_again_replaces_the_one_before(store, clock):
    store.heartbeat_devices("old", [device()], 30.0)
    clock.at += 10
    store.heartbeat_devices("other", [device()], 30.0)
    assert [d.runner_id for d in store.devices(clock.at)] == ["old", "other"]
    clock.at += 31
    store.heartbeat_devices("new", [device()], 30.0)
    assert [d.runner_id for d in store.devices(clock.at)] == ["new"]


def test_a_job_is_told_when_its_runners_device_changes(store):
    store.heartbeat_devices("runner-1", [device()], 30.0)
    lease = claimed(store, job_spec())
    idle, _ = store.create_job(job_spec(), None, 1.0)
    before = store.job(lease.job_id).last_event
    store.heartbeat_devices("runner-1", [device()], 30.0)
    store.heartbeat_devices("runner-2", [device("cpu:else")], 30.0)
    assert store.job(lease.job_id).last_event == before
    store.heartbeat_devices("runner-1", [device(healthy=False, detail="throttled")], 30.0)
    told = store.events(lease.job_id, before, 10)
    assert [(e.kind, e.data) for e in told] == [
        ("device", {"device": "cpu:host", "healthy": False, "detail": "throttled"})
    ]
    assert store.job(idle.id).last_event == 1


def test_lookups_are_counted_by_shape_and_target(store):
    for status, at, count in (("missed", 1.0, 1), ("exact", 2.0, 3), ("exact", 3.0, 1)):
        store.count_lookup(gemm(), TargetQuery("cpu"), status, at, count)
    store.count_lookup(gemm(), TargetQuery("cuda", model="Ünïcode " * 20), "stale", 4.0)
    store.count_lookup(gemm(m=5), TargetQuery(), "nearest", 5.0)
    first = store.lookups(2, None)
    second = store.lookups(2, first.next_cursor)
    assert [(c.workload, c.target.kind, c.last_at) for c in (*first.items, *second.items)] == [
        (gemm(m=5), "auto", 5.0),
        (gemm(), "cuda", 4.0),
        (gemm(), "cpu", 3.0),
    ]
    assert second.next_cursor is None
    assert dict(second.items[0].counts) == {"exact": 4, "nearest": 0, "stale": 0, "missed": 1}
    assert dict(store.counts().lookups) == {"exact": 4, "nearest": 1, "stale": 1, "missed": 1}
    with pytest.raises(ValueError, match="exact"):
        store.count_lookup(gemm(), TargetQuery(), "found", 1.0)
    with pytest.raises(BadCursor):
        store.lookups(2, "AAAA")


def test_lookups_counted_at_once_all_count(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.count_lookup(gemm(), TargetQuery(), "exact", float(i)), range(40)))
    assert store.lookups(5, None).items[0].counts["exact"] == 40


def test_the_newest_cost_model_is_kept(store):
    assert store.load_model("gemm", "cpu") is None
    store.save_model("gemm", "cpu", b"\x00one", "f1")
    store.save_model("gemm", "cpu", b"two\xff", "f2")
    store.save_model("gemm", "cuda", b"other", "f1")
    assert store.load_model("gemm", "cpu") == (b"two\xff", "f2")


def test_a_change_of_identity_is_news_of_the_device(store, clock):
    store.heartbeat_devices("runner-1", [device()], 30.0)
    lease = claimed(store, job_spec())
    before = store.job(lease.job_id).last_event
    store.heartbeat_devices("runner-1", [device(identity=dataclasses.replace(IDENTITY, driver="new"))], 30.0)
    assert store.job(lease.job_id).last_event == before + 1
