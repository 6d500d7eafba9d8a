"""Keys at rest, and what a key may have open, on both databases."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select
from store_nouns import TARGET, candidates, gemm, job_spec, measured

from db.keys import key_digest
from db.tables_served import KeyRow
from tuner.access import UNLIMITED, KeyLimits, LimitReached, Owner, Scope
from tuner.task import Task
from tuner.views import NotFound


def test_only_the_hash_is_kept(store, clock):
    view, key = store.create_key("ci", Scope.SUBMIT, KeyLimits(60, 2, 100))
    assert (view.name, view.scope, view.created_at, view.revoked_at) == ("ci", "submit", clock.at, None)
    row = store._tx.read(lambda s: s.scalars(select(KeyRow)).one())
    stored = " ".join(str(v) for v in vars(row).values())
    assert key not in stored
    assert key.removeprefix("tw_") not in stored
    assert row.digest == key_digest(key)
    assert len(key) >= 43, "256 bits in base 64"
    assert store.find_key(key) == store.key(view.id) == view


def test_keys_differ_and_others_open_nothing(store):
    keys = {store.create_key("k", Scope.READ, UNLIMITED)[1] for _ in range(20)}
    assert len(keys) == 20
    for wrong in ("", "tw_", next(iter(keys))[:-1], next(iter(keys)) + "a", "x\x00y", "\ud800", "é"):
        assert store.find_key(wrong) is None


def test_a_revoked_key_is_never_found_again(store, clock):
    assert not store.has_keys()
    view, key = store.create_key("k", Scope.ADMIN, UNLIMITED)
    clock.at += 5
    assert store.revoke_key(view.id).revoked_at == clock.at
    clock.at += 5
    assert store.revoke_key(view.id).revoked_at == clock.at - 5, "once is for good"
    assert store.find_key(key) is None
    assert store.key(view.id) is None
    assert [k.id for k in store.api_keys()] == [view.id]
    assert store.has_keys(), "revoking the last key does not open the service"
    with pytest.raises(NotFound, match="key_none"):
        store.revoke_key("key_none")


def test_two_requests_at_once_do_not_pass_the_limit_together(store):
    view, _ = store.create_key("k", Scope.SUBMIT, KeyLimits(None, 3, None))
    owner = Owner(view.id, view.limits)

    def submit(i: int) -> bool:
        try:
            store.create_job(job_spec(gemm(m=i + 1)), None, 1.0, owner)
        except LimitReached:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(submit, range(8))) == 3
    assert {j.key_id for j in store.jobs(None, 10, None).items} == {view.id}


def test_what_was_measured_is_no_longer_open(store):
    view, _ = store.create_key("k", Scope.SUBMIT, KeyLimits(None, None, 10))
    owner = Owner(view.id, view.limits)
    store.create_job(job_spec(max_trials=8), None, 1.0, owner)
    with pytest.raises(LimitReached, match="8 are open, 3 more"):
        store.create_job(job_spec(max_trials=3), None, 1.0, owner)
    store.create_job(job_spec(max_trials=90), None, 2.0)  # nobody's: counts for nobody
    lease = store.claim("r", ["cpu"], 30.0)
    task = lease.tasks[0].task_id
    store.bind(lease, task, Task(gemm(), TARGET))
    for trial in store.reserve(lease, task, candidates(2)):
        store.commit(lease, task, measured(trial))
    with pytest.raises(LimitReached, match="6 are open, 5 more"):
        store.create_job(job_spec(max_trials=5), None, 1.0, owner)
    store.create_job(job_spec(max_trials=4), None, 1.0, owner)


@pytest.mark.parametrize("limits", [(0, None, None), (None, -1, None), (None, None, 2**31)])
def test_a_limit_must_be_a_number_that_limits(limits):
    with pytest.raises(ValueError, match="between 1 and"):
        KeyLimits(*limits)
