"""A clock that jumps: leases end early or at once, never late; no row is lost, an hour that never was counts not."""

import dataclasses

import pytest
from store_nouns import candidates, claimed, device, job_spec, measured

from tuner.job import JobState, StopReason
from tuner.ports import LeaseLost

HOUR = 3600.0


def work(store, lease, count):
    task = lease.tasks[0].task_id
    for trial in store.reserve(lease, task, candidates(count)):
        store.commit(lease, task, measured(trial))


def test_an_hour_forward_costs_the_lease_and_no_record(store, clock):
    old = claimed(store, job_spec(max_trials=8, max_seconds=600.0), lease_s=30.0)
    work(store, old, 3)
    open_trial = store.reserve(old, old.tasks[0].task_id, candidates(1, first=50))[0]
    clock.at += HOUR
    assert store.interrupt_expired() == 1
    with pytest.raises(LeaseLost):
        store.commit(old, old.tasks[0].task_id, measured(open_trial))
    new = store.claim("r", ["cpu"], 30.0)
    assert (new.job_id, new.token) == (old.job_id, old.token + 1)
    assert new.elapsed_s == 0.0, "nobody worked in the hour that never was"
    assert len(store.records(new, new.tasks[0].task_id)) == 3
    (again,) = store.reserve(new, new.tasks[0].task_id, [])
    assert again.ordinal == open_trial.ordinal


def test_an_hour_forward_between_two_renewals_counts_as_a_minute_at_most(store, clock):
    lease = claimed(store, job_spec(), lease_s=30.0)
    clock.at += 10.0
    store.renew(lease, 30.0)
    clock.at += HOUR
    assert store.renew(lease, 30.0) is JobState.RUNNING, "nobody noticed in between: the runner goes on"
    assert store.job(lease.job_id).elapsed_s <= 70.0


def test_an_hour_back_frees_the_job_of_a_dead_runner_and_not_that_of_a_living_one(store, clock):
    dead = claimed(store, job_spec(), lease_s=30.0)
    clock.at -= HOUR
    alive = claimed(store, job_spec(priority=5), lease_s=30.0)
    work(store, alive, 2)
    assert store.job(dead.job_id).state is JobState.INTERRUPTED
    assert store.renew(alive, 30.0) is JobState.RUNNING
    clock.at += 10.0
    store.renew(alive, 30.0)
    assert store.job(alive.job_id).elapsed_s == 10.0
    store.finish_job(alive, JobState.COMPLETED, StopReason.TRIALS, None)
    assert store.claim("next", ["cpu"], 30.0).job_id == dead.job_id


def test_a_living_runner_puts_its_own_lease_right_after_a_jump_back(store, clock):
    lease = claimed(store, job_spec(), lease_s=30.0)
    clock.at -= HOUR
    store.renew(lease, 30.0)
    assert store.interrupt_expired() == 0
    clock.at += 31.0
    assert store.interrupt_expired() == 1


def test_devices_of_before_the_jump_back_are_not_taken_for_alive(store, clock):
    store.heartbeat_devices("gone", [dataclasses.replace(device(), device_id="cpu:gone")], 9.0)
    clock.at -= HOUR
    store.heartbeat_devices("here", [device()], 9.0)
    assert {d.device_id: d.alive for d in store.devices(clock.now())} == {"cpu:gone": False, "cpu:host": True}
