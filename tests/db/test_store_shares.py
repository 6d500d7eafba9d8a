"""Fair sharing: runners' seconds go to jobs by priority and weight, decided by the rows alone."""

from collections import Counter

import pytest
from sqlalchemy import text
from store_nouns import TARGET, gemm, job_spec

from search_space.errors import InvalidField
from tuner.job import TRANSITIONS, JobSpec, JobState
from tuner.ports import LeaseLost

S = JobState
SLICE_S = 10.0


def submit(store, name, weight=1.0, priority=0, at=1.0):
    return store.create_job(job_spec(gemm(), name=name, weight=weight, priority=priority), None, at)[0].id


def work(store, clock, runners, steps, step_s=SLICE_S):
    """Seconds by job's name: each of `runners` works in steps, and lets go where another job's turn has come."""
    spent, order, held = Counter(), [], {}
    for _ in range(steps):
        for r in range(runners):
            if r not in held:
                held[r] = store.claim(f"r{r}", ["cpu"], 3600.0)
                order += [held[r].spec.name] if held[r] else []
        clock.at += step_s
        for r, lease in list(held.items()):
            if lease is None:
                del held[r]
                continue
            store.renew(lease, 3600.0)
            spent[lease.spec.name] += step_s
            if store.yield_job(lease, ["cpu"], SLICE_S):
                del held[r]
    for lease in held.values():
        store.release(lease)
    return spent, order


def test_seconds_go_by_weight(store, clock):
    for name, weight in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        submit(store, name, weight)
    spent, _ = work(store, clock, runners=1, steps=140)
    for name, share in (("a", 1 / 7), ("b", 2 / 7), ("c", 4 / 7)):
        assert abs(spent[name] - 1400 * share) <= 2 * SLICE_S, spent


def test_two_runners_share_out_three_jobs(store, clock):
    for name, weight in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        submit(store, name, weight)
    spent, _ = work(store, clock, runners=2, steps=80)
    for name, share in (("a", 0.25), ("b", 0.25), ("c", 0.5)):
        assert abs(spent[name] - 1600 * share) <= 4 * SLICE_S, spent


def test_the_same_rows_give_the_same_order(store, clock):
    begin, orders = clock.at, []
    for _ in range(2):
        store._tx.write(lambda s: s.execute(text("DELETE FROM jobs")))
        clock.at = begin
        for at, (name, weight) in enumerate((("a", 1.0), ("b", 3.0), ("c", 1.5))):
            submit(store, name, weight, at=float(at))
        orders.append(work(store, clock, runners=2, steps=30)[1])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 3


def test_a_higher_priority_goes_first_at_once(store, clock):
    submit(store, "low", weight=100.0)
    lease = store.claim("r", ["cpu"], 3600.0)
    submit(store, "high", weight=0.01, priority=1, at=9.0)
    clock.at += 0.5
    assert store.yield_job(lease, ["cpu"], SLICE_S), "in the middle of its slice"
    high = store.claim("r", ["cpu"], 3600.0)
    assert high.spec.name == "high"
    clock.at += 1000.0
    assert not store.yield_job(high, ["cpu"], SLICE_S), "what is less urgent waits"


def test_a_slice_is_not_cut_by_an_equal(store, clock):
    submit(store, "a")
    submit(store, "b", at=2.0)
    lease = store.claim("r", ["cpu"], 3600.0)
    clock.at += SLICE_S - 1.0
    assert not store.yield_job(lease, ["cpu"], SLICE_S)
    clock.at += 1.0
    assert store.yield_job(lease, ["cpu"], SLICE_S)
    assert store.claim("r", ["cpu"], 3600.0).spec.name == "b"


def test_a_job_alone_keeps_its_runner(store, clock):
    submit(store, "a")
    store.create_job(job_spec(name="gpu", target="cuda"), None, 2.0)
    lease = store.claim("r", ["cpu"], 3600.0)
    clock.at += 1000.0
    assert not store.yield_job(lease, ["cpu"], SLICE_S), "nothing that these devices could run is waiting"
    assert store.job(lease.job_id).state is S.RUNNING


def test_a_newcomer_gets_its_share_and_no_more(store, clock):
    submit(store, "old")
    work(store, clock, runners=1, steps=50)
    submit(store, "new", at=2.0)
    spent, _ = work(store, clock, runners=1, steps=20)
    assert abs(spent["new"] - spent["old"]) <= 2 * SLICE_S, "the past of the others is not made up for"


def test_a_pause_saves_nothing_up(store, clock):
    first, _ = submit(store, "a"), submit(store, "b")
    store.pause(first, clock.at)
    work(store, clock, runners=1, steps=50)
    store.resume(first, clock.at)
    spent, _ = work(store, clock, runners=1, steps=20)
    assert abs(spent["a"] - spent["b"]) <= 2 * SLICE_S


def test_what_yielded_is_queued_and_its_lease_has_ended(store, clock):
    job = submit(store, "a")
    submit(store, "b", at=2.0)
    lease = store.claim("r", ["cpu"], 3600.0)
    clock.at += SLICE_S
    assert store.yield_job(lease, ["cpu"], SLICE_S)
    view = store.job(job)
    assert (view.state, view.elapsed_s) == (S.QUEUED, SLICE_S)
    with pytest.raises(LeaseLost):
        store.renew(lease, 10.0)
    assert not store.yield_job(lease, ["cpu"], SLICE_S), "asking again changes nothing"
    store.claim("r", ["cpu"], 3600.0)
    again = store.claim("r2", ["cpu"], 3600.0)
    assert (again.job_id, again.elapsed_s) == (job, SLICE_S)
    with pytest.raises(LeaseLost):
        store.yield_job(lease, ["cpu"], SLICE_S)


def test_every_state_can_be_cancelled_until_it_is_final():
    for state in (S.QUEUED, S.RUNNING, S.PAUSED, S.INTERRUPTED):
        assert S.CANCELLED in TRANSITIONS[state]
    assert all(not TRANSITIONS[s] for s in (S.COMPLETED, S.FAILED, S.CANCELLED))


def test_weights_that_share_nothing_are_refused():
    body = {"workload": gemm().to_json()}
    assert JobSpec.from_json(body | {"weight": 2.5}).to_json()["weight"] == 2.5
    assert "weight" not in JobSpec.from_json(body | {"weight": 1}).to_json()
    for weight in (0, -1, 0.001, 101, "1", True):
        with pytest.raises(InvalidField) as fault:
            JobSpec.from_json(body | {"weight": weight})
        assert fault.value.field == "weight"


def test_what_these_devices_cannot_run_takes_no_turn(store, clock):
    """More urgent, but for another model of the same kind: giving way to it would be for nothing."""
    submit(store, "here")
    lease = store.claim("r", ["cpu"], 3600.0)
    target = {"kind": "cpu", "model": "another model"}
    store.create_job(job_spec(name="there", target=target, priority=5), None, 2.0)
    clock.at += 100.0
    assert not store.yield_job(lease, ["cpu"], SLICE_S, (TARGET,))
    submit(store, "also here", priority=1, at=3.0)
    assert store.yield_job(lease, ["cpu"], SLICE_S, (TARGET,))
