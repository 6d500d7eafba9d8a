"""The lease keeper lets a job go when another one's turn has come, and hears it from the rows alone."""

import time

from store_nouns import claimed, gemm, job_spec

from api.runner.lease_keeper import LeaseKeeper
from db.store import SqlStore
from tuner.job import JobState


def test_a_job_gives_way_to_a_more_urgent_one_and_goes_on_later(store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(4)), lease_s=60.0)
    with LeaseKeeper(store, lease, 0.3, lambda: store.yield_job(lease, ["cpu"], 3600.0)) as keeper:
        time.sleep(0.5)
        assert not keeper.must_stop, "alone it keeps its runner"
        urgent, _ = store.create_job(job_spec(gemm(5), priority=1), None, 2.0)
        end = time.monotonic() + 20.0
        while not keeper.must_stop and time.monotonic() < end:
            time.sleep(0.02)
        assert (keeper.must_stop, keeper.wanted, keeper.lost) == (True, JobState.QUEUED, False)
    assert store.job(lease.job_id).state is JobState.QUEUED
    first, second = (store.claim("r", ["cpu"], 60.0) for _ in range(2))
    assert (first.job_id, second.job_id) == (urgent.id, lease.job_id)  # type: ignore[union-attr]


def test_a_job_that_is_cancelled_meanwhile_gives_no_way(store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(4)), lease_s=60.0)
    store.create_job(job_spec(gemm(5), priority=1), None, 2.0)
    store.cancel(lease.job_id, 3.0)
    with LeaseKeeper(store, lease, 0.3, lambda: store.yield_job(lease, ["cpu"], 0.0)) as keeper:
        end = time.monotonic() + 20.0
        while not keeper.must_stop and time.monotonic() < end:
            time.sleep(0.02)
        assert keeper.wanted is JobState.CANCELLED
    assert store.job(lease.job_id).state is JobState.CANCELLED
