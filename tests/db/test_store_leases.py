"""Leases: who may work on a job, and that nobody else can write."""

import time

import pytest
from store_nouns import (
    ARTIFACT,
    TARGET,
    best_config,
    candidates,
    claimed,
    failed,
    gemm,
    job_spec,
    measured,
    ok,
)

from tuner.job import JobState, StopReason
from tuner.ports import LeaseLost, Progress
from tuner.task import Task
from tuner.views import Conflict, NotFound

S = JobState


def test_claims_go_by_priority_then_age(store):
    for name, at, priority in (("old low", 1.0, -1), ("young", 3.0, 0), ("old", 2.0, 0), ("high", 4.0, 9)):
        store.create_job(job_spec(name=name, priority=priority), None, at)
    leases = [store.claim(f"r{i}", ["cpu"], 30.0) for i in range(5)]
    assert [lease.spec.name for lease in leases[:4]] == ["high", "old", "young", "old low"]
    assert leases[4] is None


def test_only_jobs_that_the_devices_can_run_are_claimed(store):
    store.create_job(job_spec(name="gpu", target="cuda"), None, 1.0)
    store.create_job(job_spec(name="any", target="auto"), None, 2.0)
    assert store.claim("r", ["cpu"], 30.0).spec.name == "any"
    assert store.claim("r", ["cpu"], 30.0) is None
    assert store.claim("r", [], 30.0) is None
    assert store.claim("r", ["cpu", "cuda"], 30.0).spec.name == "gpu"


def test_a_claim_starts_the_job_and_names_its_tasks(store, clock):
    job, _ = store.create_job(job_spec(gemm(), gemm(m=9)), None, 1.0)
    lease = store.claim("r", ["cpu"], 30.0)
    assert (lease.job_id, lease.runner_id, lease.elapsed_s, lease.spec) == (job.id, "r", 0.0, job.spec)
    assert [(t.index, t.weight, t.stop_reason, t.target) for t in lease.tasks] == [
        (0, 1.0, None, None),
        (1, 1.0, None, None),
    ]
    view = store.job(job.id)
    assert (view.state, view.started_at) == (S.RUNNING, clock.at)


def test_an_expired_lease_makes_the_job_interrupted_and_then_claimable(store, clock):
    old = claimed(store, job_spec(), lease_s=30.0)
    clock.at += 29.9
    assert store.claim("r2", ["cpu"], 30.0) is None
    clock.at += 0.1
    new = store.claim("r2", ["cpu"], 30.0)
    assert new.job_id == old.job_id
    assert new.token > old.token
    assert new.tasks[0].target == TARGET, "the binding of the first claim stays"
    states = [e.data["state"] for e in store.events(old.job_id, 0, 100) if "state" in e.data]
    assert states == ["queued", "running", "interrupted", "running"]


def test_expired_leases_are_found_without_a_claim(store, clock):
    lease = claimed(store, job_spec(), lease_s=30.0)
    assert store.interrupt_expired() == 0
    clock.at += 31
    assert store.interrupt_expired() == 1
    assert store.job(lease.job_id).state is S.INTERRUPTED
    with pytest.raises(LeaseLost):
        store.renew(lease, 30.0)


def test_renewing_keeps_the_job(store, clock):
    lease = claimed(store, job_spec(), lease_s=30.0)
    for _ in range(4):
        clock.at += 20
        assert store.renew(lease, 30.0) is S.RUNNING
    assert store.claim("r2", ["cpu"], 30.0) is None


def every_use_of(store, lease, trial):
    task = lease.tasks[0].task_id
    return {
        "bind": lambda: store.bind(lease, task, Task(gemm(), TARGET)),
        "reserve": lambda: store.reserve(lease, task, candidates(1, first=50)),
        "retry": lambda: store.retry(lease, trial),
        "commit": lambda: store.commit(lease, task, measured(trial)),
        "set_baseline": lambda: store.set_baseline(lease, task, "torch", ok(1.0)),
        "promote": lambda: store.promote(lease, task, best_config(), ARTIFACT),
        "report": lambda: store.report(lease, Progress(0, "search")),
        "finish_task": lambda: store.finish_task(lease, task, StopReason.TRIALS),
        "finish_job": lambda: store.finish_job(lease, S.COMPLETED, StopReason.TRIALS, None),
    }


def test_an_older_token_can_do_nothing(store, clock):
    old = claimed(store, job_spec(), lease_s=1.0)
    trial = store.reserve(old, old.tasks[0].task_id, candidates(1))[0]
    clock.at += 2
    new = store.claim("r2", ["cpu"], 30.0)
    before = store.job(new.job_id)
    uses = every_use_of(store, old, trial)
    uses["renew"] = lambda: store.renew(old, 30.0)
    uses["release"] = lambda: store.release(old)
    uses["records"] = lambda: store.records(old, old.tasks[0].task_id)
    for name, use in uses.items():
        with pytest.raises(LeaseLost):
            use()
        assert store.job(new.job_id) == before, f"{name} under an old token changed the job"
    assert store.renew(new, 30.0) is S.RUNNING


@pytest.mark.parametrize(("stop", "state"), [("cancel", S.CANCELLED), ("pause", S.PAUSED)])
def test_after_a_cancel_or_pause_the_runner_sees_it_and_writes_nothing(store, stop, state):
    lease = claimed(store, job_spec())
    trials = store.reserve(lease, lease.tasks[0].task_id, candidates(2))
    store.commit(lease, lease.tasks[0].task_id, measured(trials[0], 0.5))
    getattr(store, stop)(lease.job_id, 2.0)
    assert store.renew(lease, 30.0) is state
    before = store.job(lease.job_id)
    for use in every_use_of(store, lease, trials[1]).values():
        with pytest.raises(LeaseLost):
            use()
    store.release(lease)
    assert store.job(lease.job_id) == before
    assert before.state is state
    assert before.tasks[0].best_latency_s == 0.5, "what was measured stays queryable"


def test_a_runner_may_confirm_a_cancel(store):
    lease = claimed(store, job_spec())
    store.cancel(lease.job_id, 2.0)
    before = store.job(lease.job_id)
    store.finish_job(lease, S.CANCELLED, StopReason.CANCELLED, None)
    assert store.job(lease.job_id) == before


def test_pause_and_resume_give_the_job_to_the_next_runner(store):
    old = claimed(store, job_spec())
    store.pause(old.job_id, 2.0)
    store.resume(old.job_id, 3.0)
    with pytest.raises(LeaseLost):
        store.renew(old, 30.0)
    new = store.claim("r2", ["cpu"], 30.0)
    assert (new.job_id, new.token) == (old.job_id, old.token + 1)


def test_release_makes_the_job_claimable_at_once(store):
    lease = claimed(store, job_spec())
    store.release(lease)
    assert store.job(lease.job_id).state is S.INTERRUPTED
    assert store.claim("r2", ["cpu"], 30.0).job_id == lease.job_id


def test_elapsed_counts_working_time_only(store, clock):
    lease = claimed(store, job_spec(), lease_s=30.0)
    clock.at += 10
    store.renew(lease, 30.0)
    assert store.job(lease.job_id).elapsed_s == 10.0
    clock.at += 5
    store.release(lease)
    clock.at += 1000  # nobody works on it
    lease = store.claim("r2", ["cpu"], 30.0)
    assert lease.elapsed_s == 15.0
    clock.at += 7
    store.renew(lease, 30.0)
    clock.at += 500  # killed: the time after it was last heard of does not count
    assert store.claim("r3", ["cpu"], 30.0).elapsed_s == 22.0


def test_finishing_a_task_is_remembered_by_the_next_claim(store):
    lease = claimed(store, job_spec(gemm(), gemm(m=9)))
    store.finish_task(lease, lease.tasks[1].task_id, StopReason.SPACE_EXHAUSTED)
    store.release(lease)
    again = store.claim("r2", ["cpu"], 30.0)
    assert [t.stop_reason for t in again.tasks] == [None, StopReason.SPACE_EXHAUSTED]
    assert store.job(lease.job_id).tasks[1].stop_reason is StopReason.SPACE_EXHAUSTED


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (None, None),
        ("no_compiler: cc not found", ("no_compiler", "cc not found")),
        ("Something: broke", ("no_valid_candidate", "Something: broke")),
        ("nul \x00 byte", ("no_valid_candidate", "nul � byte")),
    ],
)
def test_a_failed_job_shows_its_error(store, error, shown):
    lease = claimed(store, job_spec())
    store.finish_job(lease, S.FAILED, StopReason.NO_VALID_CANDIDATE, error)
    view = store.job(lease.job_id)
    assert (view.state, view.stop_reason, view.error) == (S.FAILED, StopReason.NO_VALID_CANDIDATE, shown)
    assert view.finished_at is not None
    with pytest.raises(LeaseLost):
        store.finish_job(lease, S.COMPLETED, None, None)


def test_a_task_stays_with_the_kind_of_device_it_was_bound_to(store):
    lease = claimed(store, job_spec())
    task = lease.tasks[0].task_id
    store.bind(lease, task, Task(gemm(), TARGET))
    other = TARGET.__class__("cpu", "skylake", "Xeon", 8)
    with pytest.raises(Conflict, match="bound"):
        store.bind(lease, task, Task(gemm(), other))
    with pytest.raises(Conflict, match="workload"):
        store.bind(lease, task, Task(gemm(m=77), TARGET))
    with pytest.raises(NotFound):
        store.bind(lease, task + 1000, Task(gemm(), TARGET))


def test_reported_phases_add_up(store):
    lease = claimed(store, job_spec())
    store.report(lease, Progress(0, "search", {"build": 1.5, "measure": 2.0}, "round 1"))
    store.report(lease, Progress(0, "train", {"build": 0.5, "model": float("nan")}))
    assert dict(store.job(lease.job_id).phase_seconds) == {"build": 2.0, "measure": 2.0, "model": 0.0}
    first, second = store.events(lease.job_id, store.job(lease.job_id).last_event - 2, 10)
    assert (first.kind, first.data["message"], second.kind) == ("job", "round 1", "model")
    assert second.data["seconds"] == {"build": 0.5, "model": None}


def test_a_baseline_is_shown_with_its_task(store):
    lease = claimed(store, job_spec())
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", ok(0.25))
    assert store.job(lease.job_id).tasks[0].baseline_latency_s == 0.25
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", failed())
    task = store.job(lease.job_id).tasks[0]
    assert (task.baseline_name, task.baseline_latency_s) == ("torch.matmul", None)


def test_without_a_clock_of_its_own_the_store_uses_the_databases_time(open_one):
    store = open_one(clock=None)
    before = time.time()
    lease = claimed(store, job_spec(), lease_s=1.5)
    assert before - 1 <= store.job(lease.job_id).started_at <= time.time() + 1
    assert store.claim("r2", ["cpu"], 30.0) is None
    time.sleep(1.55)
    assert store.claim("r2", ["cpu"], 30.0).token == lease.token + 1
