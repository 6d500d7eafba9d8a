"""Trials: the budget is exact, a commit counts once, nothing that is not a number is stored."""

import dataclasses

import pytest
from store_nouns import candidate, candidates, claimed, failed, gemm, job_spec, measured, ok

from tuner.outcome import Outcome
from tuner.ports import Measured
from tuner.views import BadCursor, Conflict, NotFound


@pytest.fixture
def lease(store):
    return claimed(store, job_spec(gemm(), gemm(m=9), max_trials=10))


@pytest.fixture
def task(lease):
    return lease.tasks[0].task_id


def test_ordinals_count_over_the_whole_job_and_end_with_its_budget(store, lease):
    first, second = (t.task_id for t in lease.tasks)
    got = [*store.reserve(lease, first, candidates(4)), *store.reserve(lease, second, candidates(4))]
    got += store.reserve(lease, first, candidates(4, first=4))
    assert [t.ordinal for t in got] == list(range(10))
    assert {t.attempt for t in got} == {0}
    assert [t.candidate for t in got[:4]] == [candidate(i) for i in range(4)]
    assert store.reserve(lease, second, candidates(4, first=100)) == []


def test_a_candidate_is_reserved_once_a_task(store, lease, task):
    twice = [*candidates(2), *candidates(2)]
    assert len(store.reserve(lease, task, twice)) == 2
    assert [t.candidate for t in store.reserve(lease, task, candidates(3))] == [candidate(2)]
    assert len(store.reserve(lease, lease.tasks[1].task_id, candidates(3))) == 3, "another task may have the same"
    assert store.reserve(lease, task, []) == []


def test_what_a_dead_runner_left_open_is_handed_out_first(store, clock, lease, task):
    trials = store.reserve(lease, task, [(candidate(i), i / 10) for i in range(4)])
    store.commit(lease, task, measured(trials[0]))
    bumped = store.retry(lease, trials[2])
    clock.at += 100
    new = store.claim("r2", ["cpu"], 30.0)
    again = store.reserve(new, task, candidates(2, first=50))
    assert [(t.id, t.ordinal, t.attempt) for t in again[:3]] == [
        (trials[1].id, 1, 0),
        (trials[2].id, 2, 1),
        (trials[3].id, 3, 0),
    ]
    assert again[1] == bumped
    assert again[0].predicted_score == 0.1
    assert [t.candidate for t in again[3:]] == [candidate(50), candidate(51)]
    assert store.reserve(new, task, []) == [], "under one token they come once"


def test_open_trials_come_back_even_when_the_budget_is_spent(store, clock, lease, task):
    store.reserve(lease, task, candidates(10))
    clock.at += 100
    new = store.claim("r2", ["cpu"], 30.0)
    assert [t.ordinal for t in store.reserve(new, task, candidates(5, first=20))] == list(range(10))


def test_a_commit_counts_once(store, lease, task):
    trial = store.reserve(lease, task, candidates(1))[0]
    store.commit(lease, task, measured(trial, 0.5))
    before = store.job(lease.job_id)
    store.commit(lease, task, measured(trial, 0.1))
    assert store.job(lease.job_id) == before
    assert [r.measurement.latency_s for r in store.records(lease, task)] == [0.5]


def test_a_committed_trial_is_shown_as_it_was_measured(store, lease, task):
    trial = store.reserve(lease, task, [(candidate(3), 0.75)])[0]
    store.commit(lease, task, measured(trial, 0.5))
    view, workload, _ = store.trial(trial.id)
    assert workload == gemm()
    assert (view.ordinal, view.task_index, view.attempt, view.candidate) == (0, 0, 0, candidate(3))
    assert (view.outcome, view.latency_s, view.ci95_s) == (Outcome.OK, 0.5, (0.495, 0.505))
    assert (view.predicted_score, view.error, view.device_id) == (0.75, None, "cpu:host")
    assert (view.started_at, view.finished_at) == (10.0, 11.0)
    assert store.trials(lease.job_id, None, None, 10, None).items == [view]


def test_a_failure_keeps_its_error_and_has_no_number(store, lease, task):
    trial = store.reserve(lease, task, candidates(1))[0]
    store.commit(lease, task, Measured(trial, failed(Outcome.WRONG_ANSWER, "off by \x00 3")))
    view, _, _ = store.trial(trial.id)
    assert (view.outcome, view.latency_s, view.error) == (Outcome.WRONG_ANSWER, None, "off by � 3")
    job = store.job(lease.job_id)
    assert (job.trials_done, job.trials_ok, dict(job.failed_by)) == (1, 0, {Outcome.WRONG_ANSWER: 1})
    assert job.tasks[0].best_latency_s is None


def test_a_retried_trial_is_one_trial_with_its_last_outcome(store, lease, task):
    trial = store.reserve(lease, task, candidates(1))[0]
    store.commit(lease, task, Measured(trial, failed(Outcome.WORKER_LOST, "killed")))
    again = store.retry(lease, trial)
    assert (again.id, again.ordinal, again.attempt) == (trial.id, trial.ordinal, 1)
    assert store.retry(lease, trial) == again, "asking twice for the next attempt gives the same"
    store.commit(lease, task, measured(again, 0.5))
    job = store.job(lease.job_id)
    assert (job.trials_done, job.trials_ok, dict(job.failed_by)) == (1, 1, {})
    assert [v.attempt for v in store.trials(lease.job_id, None, None, 10, None).items] == [1]
    assert [(r.attempt, r.measurement.outcome) for r in store.records(lease, task)] == [
        (0, Outcome.WORKER_LOST),
        (1, Outcome.OK),
    ]
    assert len(store.reserve(lease, task, candidates(20, first=1))) == 9, "a retry takes nothing from the budget"


def test_what_does_not_belong_together_is_refused(store, lease, task):
    trial = store.reserve(lease, task, candidates(1))[0]
    with pytest.raises(NotFound):
        store.commit(lease, lease.tasks[1].task_id, measured(trial))
    with pytest.raises(NotFound):
        store.commit(lease, task, measured(dataclasses.replace(trial, id=trial.id + 999)))
    with pytest.raises(Conflict, match="attempt"):
        store.commit(lease, task, measured(dataclasses.replace(trial, attempt=1)))
    with pytest.raises(Conflict, match="attempt"):
        store.retry(lease, dataclasses.replace(trial, attempt=5))
    with pytest.raises(NotFound):
        store.trial(trial.id)  # reserved, not measured
    with pytest.raises(NotFound):
        store.trial(2**70)


def test_an_unbound_task_takes_no_measurement(store):
    job, _ = store.create_job(job_spec(), None, 1.0)
    lease = store.claim("r", ["cpu"], 30.0)
    assert lease.job_id == job.id
    trial = store.reserve(lease, lease.tasks[0].task_id, candidates(1))[0]
    with pytest.raises(Conflict, match="bind"):
        store.commit(lease, lease.tasks[0].task_id, measured(trial))


def test_numbers_that_do_not_exist_are_stored_as_none(store, lease, task):
    nan, inf = float("nan"), float("inf")
    trial = store.reserve(lease, task, [(candidate(1), nan)])[0]
    assert trial.predicted_score is None
    odd = dataclasses.replace(ok(0.5), max_rel_err=inf, ci95_secs=(nan, inf), interval=(nan, 2.0))
    store.commit(lease, task, Measured(trial, odd))
    view, _, _ = store.trial(trial.id)
    assert (view.predicted_score, view.ci95_s, view.started_at, view.finished_at) == (None, None, None, 2.0)
    assert store.records(lease, task)[0].measurement.max_rel_err is None


def test_trials_are_paged_and_filtered(store, lease):
    for task, first in zip((t.task_id for t in lease.tasks), (0, 5), strict=True):
        for trial in store.reserve(lease, task, candidates(5, first)):
            store.commit(lease, task, measured(trial, 0.5 if trial.ordinal % 2 else None))
    job = lease.job_id

    def ordinals(task, outcome, limit=3):
        found, cursor = [], None
        while True:
            page = store.trials(job, task, outcome, limit, cursor)
            assert len(page.items) <= limit
            found += [v.ordinal for v in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert ordinals(None, None) == list(range(10))
    assert ordinals(0, None) == [0, 1, 2, 3, 4]
    assert ordinals(1, None, limit=5) == [5, 6, 7, 8, 9]
    assert ordinals(None, Outcome.OK) == [1, 3, 5, 7, 9]
    assert ordinals(1, Outcome.BUILD_ERROR) == [6, 8]
    assert ordinals(None, Outcome.RUN_TIMEOUT) == []
    with pytest.raises(NotFound):
        store.trials(job, 2, None, 3, None)
    with pytest.raises(BadCursor):
        store.trials(job, None, None, 3, "nonsense")


def test_records_of_all_jobs_teach_the_model(store, lease, task):
    for trial in store.reserve(lease, task, candidates(3)):
        store.commit(lease, task, measured(trial, 0.1 * (trial.ordinal + 1)))
    other = claimed(store, job_spec(gemm(m=33)))
    trial = store.reserve(other, other.tasks[0].task_id, candidates(1))[0]
    store.commit(other, other.tasks[0].task_id, measured(trial, 0.9))
    own = store.records(lease, task)
    assert [(r.trial, r.job_id) for r in own] == [(0, lease.job_id), (1, lease.job_id), (2, lease.job_id)]
    related = store.related_records(own[0].task, 3)
    assert [r.measurement.latency_s for r in related] == pytest.approx([0.9, 0.3, 0.2])
    assert related[1:] == [own[2], own[1]]
    gpu = dataclasses.replace(own[0].task.target, kind="cuda")
    assert store.related_records(dataclasses.replace(own[0].task, target=gpu), 3) == []
