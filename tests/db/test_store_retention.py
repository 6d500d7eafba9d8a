"""What goes with an old job, and what stays, on both databases."""

import hashlib

import pytest
from sqlalchemy import func, select
from store_nouns import best_config, candidate, claimed, gemm, job_spec, measured

from db.tables import Base
from tuner.job import JobState, StopReason
from tuner.outcome import Outcome
from tuner.ports import LeaseLost
from tuner.views import Conflict, Keep, NotFound

RECORDS = ("trials", "measurements", "events")


def finished(store, m=4, latency_s=0.001, artifact=b"winner", trials=3):
    """A completed job of one GEMM with a promoted winner."""
    lease = claimed(store, job_spec(gemm(m), max_trials=trials))
    task = lease.tasks[0].task_id
    for trial in store.reserve(lease, task, [(candidate(i), None) for i in range(trials)]):
        store.commit(lease, task, measured(trial, None if trial.ordinal == 0 else latency_s))
    best = best_config(latency_s, chosen=candidate(1), artifact=artifact)
    schedule = store.promote(lease, task, best, artifact)
    store.finish_task(lease, task, StopReason.TRIALS)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)
    return lease.job_id, schedule


def rows(store):
    def count(session):
        return {
            name: session.scalar(select(func.count()).select_from(table))
            for name, table in Base.metadata.tables.items()
        }

    return store._tx.read(count)


def test_the_winner_that_is_served_stays_with_its_job(store):
    job, schedule = finished(store)
    removed = store.remove_job(job, Keep(), 5.0)
    assert (removed.deleted, removed.trials, removed.schedules) == (False, 3, 0)
    found = rows(store)
    assert [found[n] for n in RECORDS] == [0, 0, 0]
    assert store.best(gemm(4), job_spec().target, {}).schedule.id == schedule
    assert store.artifact(hashlib.sha256(b"winner").hexdigest()) == b"winner"
    view = store.job(job)
    assert (view.pruned_at, view.trials_done, view.trials_ok, view.last_event) == (5.0, 3, 2, 0)
    assert store.trials(job, None, None, 10, None).items == []
    assert list(store.events(job, 0, 10)) == []
    assert store.remove_job(job, Keep(), 6.0).trials == 0, "again changes nothing"


def test_with_its_winners_nothing_of_a_job_is_left(store):
    job, schedule = finished(store)
    removed = store.remove_job(job, Keep(winners=False), 5.0)
    assert (removed.deleted, removed.trials, removed.schedules) == (True, 3, 1)
    found = rows(store)
    left = {name: n for name, n in found.items() if n}
    assert set(left) == {"tallies"}
    for ask in (lambda: store.job(job), lambda: store.schedule(schedule)):
        with pytest.raises(NotFound):
            ask()
    assert store.best(gemm(4), job_spec().target, {}).status == "missed"
    with pytest.raises(NotFound):
        store.remove_job(job, Keep(), 5.0)


def test_a_beaten_winner_goes_and_its_artifact_too(store):
    old, _ = finished(store, latency_s=0.002, artifact=b"old")
    finished(store, latency_s=0.001, artifact=b"new")
    assert store.remove_job(old, Keep(), 5.0).deleted
    with pytest.raises(NotFound):
        store.artifact(hashlib.sha256(b"old").hexdigest())
    assert store.artifact(hashlib.sha256(b"new").hexdigest()) == b"new"


def test_an_artifact_that_another_schedule_names_stays(store):
    first, _ = finished(store, m=4, artifact=b"shared")
    finished(store, m=5, artifact=b"shared")
    store.remove_job(first, Keep(winners=False), 5.0)
    assert store.artifact(hashlib.sha256(b"shared").hexdigest()) == b"shared"


def test_the_next_best_is_served_when_the_best_is_given_up(store):
    _, second = finished(store, latency_s=0.002, artifact=b"second")
    finished(store, latency_s=0.003, artifact=b"third")
    best, _ = finished(store, latency_s=0.001, artifact=b"best")
    store.remove_job(best, Keep(winners=False), 5.0)
    assert store.best(gemm(4), job_spec().target, {}).schedule.id == second


def test_records_may_be_kept(store):
    job, _ = finished(store)
    removed = store.remove_job(job, Keep(records=True), 5.0)
    assert (removed.deleted, removed.trials) == (False, 0)
    assert len(store.trials(job, None, None, 10, None).items) == 3
    assert list(store.events(job, 0, 10)) == []


def test_counts_for_monitoring_never_fall(store):
    job, _ = finished(store)
    before = store.counts().trials
    store.remove_job(job, Keep(winners=False), 5.0)
    finished(store, m=9)
    assert before[Outcome.OK] == 2
    assert store.counts().trials == {**before, Outcome.OK: 4, Outcome.BUILD_ERROR: 2}


def test_a_job_that_has_not_ended_is_not_removed(store, clock):
    lease = claimed(store, job_spec())
    with pytest.raises(Conflict, match="running: cancel it first"):
        store.remove_job(lease.job_id, Keep(), 5.0)
    store.cancel(lease.job_id, clock.at)
    assert store.remove_job(lease.job_id, Keep(), 5.0).deleted
    with pytest.raises(LeaseLost):
        store.renew(lease, 30.0)


def test_pruning_takes_the_oldest_once(store, clock):
    jobs = []
    for m in range(4, 8):
        clock.at += 100.0
        jobs.append(finished(store, m=m)[0])
    cancelled, _ = store.create_job(job_spec(gemm(9)), None, clock.at)
    store.cancel(cancelled.id, clock.at)
    open_job, _ = store.create_job(job_spec(gemm(10)), None, 0.0)
    before = clock.at - 50.0
    assert [r.job_id for r in store.prune(before, Keep(), 2, clock.at)] == jobs[:2]
    assert [r.job_id for r in store.prune(before, Keep(), 2, clock.at)] == jobs[2:3]
    assert store.prune(before, Keep(), 2, clock.at) == []
    assert {r.job_id for r in store.prune(clock.at + 1, Keep(), 9, clock.at)} == {jobs[3], cancelled.id}
    assert store.job(open_job.id).state is JobState.QUEUED
