"""Jobs: created once, listed in order, moved along the one table of states."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session
from store_nouns import candidates, claimed, gemm, job_spec, measured

from db import jobs
from db.states import transition
from db.tables import JobRow
from tuner.job import FINAL, TRANSITIONS, JobState, StopReason
from tuner.outcome import Outcome
from tuner.views import BadCursor, Conflict, NotFound

S = JobState


def test_a_created_job_is_queued_and_shows_what_was_asked(store):
    spec = job_spec(gemm(), gemm(m=5), name="décode", max_trials=7, seed=3, priority=-2, target="cpu", max_seconds=9.5)
    job, created = store.create_job(spec, None, 123.5)
    assert created
    assert (job.state, job.spec, job.created_at, job.started_at) == (S.QUEUED, spec, 123.5, None)
    assert [t.workload for t in job.tasks] == [gemm(), gemm(m=5)]
    assert [t.index for t in job.tasks] == [0, 1]
    assert (job.trials_done, job.trials_ok, dict(job.failed_by), job.stop_reason, job.error) == (0, 0, {}, None, None)
    assert store.job(job.id) == job


def test_the_same_key_gives_the_same_job_and_another_body_is_a_conflict(store):
    first, created = store.create_job(job_spec(seed=1), "key", 1.0)
    again, created_again = store.create_job(job_spec(seed=1), "key", 2.0)
    assert (created, created_again) == (True, False)
    assert again == first
    with pytest.raises(Conflict, match="idempotency key"):
        store.create_job(job_spec(seed=2), "key", 3.0)
    other, created = store.create_job(job_spec(seed=1), None, 4.0)
    assert created
    assert other.id != first.id


def test_ten_identical_requests_at_once_make_one_job(store):
    barrier = threading.Barrier(10)

    def post(_: int) -> tuple[str, bool]:
        barrier.wait()
        job, created = store.create_job(job_spec(), "one key", 1.0)
        return job.id, created

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(post, range(10)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    assert len(store.jobs(None, 50, None).items) == 1


def test_pages_hold_every_job_once_newest_first(store):
    # Two of them in the same instant: the cursor must tell them apart.
    made = [store.create_job(job_spec(seed=i), None, float(at))[0] for i, at in enumerate([5, 1, 3, 3, 2])]
    seen, cursor = [], None
    while True:
        page = store.jobs(None, 2, cursor)
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [j.created_at for j in seen] == [5.0, 3.0, 3.0, 2.0, 1.0]
    assert {j.id for j in seen} == {j.id for j in made}


def test_jobs_are_filtered_by_state(store):
    kept, _ = store.create_job(job_spec(), None, 1.0)
    gone, _ = store.create_job(job_spec(), None, 2.0)
    store.cancel(gone.id, 3.0)
    assert [j.id for j in store.jobs(S.QUEUED, 10, None).items] == [kept.id]
    assert [j.id for j in store.jobs(S.CANCELLED, 10, None).items] == [gone.id]
    assert store.jobs(S.FAILED, 10, None).items == []


@pytest.mark.parametrize("cursor", ["", "x", "!!!", "W10", "WyJqb2JzIiwgMV0", "WyJ0cmlhbHMiLCAxXQ", "é" * 9])
def test_a_cursor_that_was_not_handed_out_is_refused(store, cursor):
    with pytest.raises(BadCursor):
        store.jobs(None, 10, cursor)


def test_a_job_that_is_not_there_is_not_found(store):
    for call in (store.job, lambda j: store.events(j, 0, 5), lambda j: store.trials(j, None, None, 5, None)):
        with pytest.raises(NotFound):
            call("job_none")
    for change in (store.cancel, store.pause, store.resume):
        with pytest.raises(NotFound):
            change("job_none", 1.0)


def test_cancelling_a_queued_job_is_immediate_and_idempotent(store):
    job, _ = store.create_job(job_spec(), None, 1.0)
    cancelled = store.cancel(job.id, 2.0)
    assert (cancelled.state, cancelled.stop_reason, cancelled.finished_at) == (S.CANCELLED, StopReason.CANCELLED, 2.0)
    assert store.cancel(job.id, 3.0) == cancelled
    assert store.claim("r", ["cpu"], 30.0) is None


def test_a_completed_job_cannot_be_cancelled_paused_or_resumed(store):
    lease = claimed(store, job_spec())
    store.finish_job(lease, S.COMPLETED, StopReason.TRIALS, None)
    for change in (store.cancel, store.pause, store.resume):
        with pytest.raises(Conflict, match="completed"):
            change(lease.job_id, 2.0)
    assert store.job(lease.job_id).state is S.COMPLETED


def test_a_paused_job_is_not_claimed_until_it_is_resumed(store):
    job, _ = store.create_job(job_spec(), None, 1.0)
    assert store.pause(job.id, 2.0).state is S.PAUSED
    assert store.pause(job.id, 2.0).state is S.PAUSED
    assert store.claim("r", ["cpu"], 30.0) is None
    assert store.resume(job.id, 3.0).state is S.QUEUED
    assert store.resume(job.id, 3.0).state is S.QUEUED
    assert store.claim("r", ["cpu"], 30.0).job_id == job.id


def test_every_pair_of_states_follows_the_table(store):
    def try_all(session: Session) -> None:
        for state in JobState:
            for to in JobState:
                view, _ = jobs.create(session, job_spec(), None, 1.0)
                row = session.get(JobRow, view.id)
                row.state = state.value
                if to in TRANSITIONS[state]:
                    transition(session, row, to, 5.0)
                    assert row.state == to
                    assert (row.finished_at == 5.0) == (to in FINAL)
                else:
                    with pytest.raises(Conflict):
                        transition(session, row, to, 5.0)
                    assert row.state == state, "a refused change must leave the row alone"

    store._tx.write(try_all)


def test_counts_add_up_over_jobs(store):
    lease = claimed(store, job_spec(max_trials=5))
    task = lease.tasks[0].task_id
    for trial, latency in zip(store.reserve(lease, task, candidates(3)), (0.1, None, 0.2), strict=True):
        store.commit(lease, task, measured(trial, latency))
    store.create_job(job_spec(), None, 1.0)
    counts = store.counts()
    assert dict(counts.jobs) == {S.RUNNING: 1, S.QUEUED: 1}
    assert {outcome: n for outcome, n in counts.trials.items() if n} == {Outcome.OK: 2, Outcome.BUILD_ERROR: 1}
    assert counts.schedules == 0
    assert dict(counts.lookups) == {"exact": 0, "nearest": 0, "stale": 0, "missed": 0}
