"""Many at once, and killed at any moment: exact budgets, no lost row, no lock error (O12b, O18, O24, O25)."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import select
from store_nouns import ARTIFACT, best_config, candidate, claimed, gemm, job_spec, measured

from db.tables import MeasurementRow, TrialRow
from search_space.target import TargetQuery
from tuner.job import JobState
from tuner.ports import Lease, LeaseLost

WORKER = Path(__file__).with_name("store_worker.py")
SUPPORT = Path(__file__).parents[1] / "support"


def start_worker(url: str, *arguments: str) -> "subprocess.Popen[str]":
    paths = [str(SUPPORT), str(SUPPORT.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(WORKER), url, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def committed(store):
    """(trial id, attempt) of every stored measurement, and the ordinals of every reserved trial by job."""
    rows = store._tx.read(lambda s: s.execute(select(MeasurementRow.trial_id, MeasurementRow.attempt)).all())
    trials = store._tx.read(lambda s: s.execute(select(TrialRow.job_id, TrialRow.ordinal)).all())
    ordinals: dict[str, list[int]] = {}
    for job_id, ordinal in trials:
        ordinals.setdefault(job_id, []).append(ordinal)
    return [tuple(row) for row in rows], {job: sorted(found) for job, found in ordinals.items()}


def test_sixteen_threads_share_one_budget_exactly(store):
    lease = claimed(store, job_spec(max_trials=50))
    task = lease.tasks[0].task_id
    barrier = threading.Barrier(16)

    def work(worker: int) -> int:
        barrier.wait()
        done, number = 0, worker * 1000
        while trials := store.reserve(lease, task, [(candidate(number), None), (candidate(number + 1), None)]):
            number += 2
            for trial in trials:
                store.commit(lease, task, measured(trial, 0.5))
                done += 1
        return done

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(work, range(16))) == 50
    rows, ordinals = committed(store)
    assert len(rows) == len(set(rows)) == 50
    assert ordinals == {lease.job_id: list(range(50))}
    assert store.job(lease.job_id).trials_done == 50


def test_processes_work_side_by_side_while_a_client_watches(store, url):
    jobs = [store.create_job(job_spec(gemm(m=i + 1), max_trials=9), None, float(i))[0].id for i in range(4)]
    workers = [start_worker(url, f"r{i}") for i in range(2)]
    seen = []
    while any(worker.poll() is None for worker in workers):
        for job_id in jobs:
            seen.append(len(store.trials(job_id, None, None, 100, None).items))
    told = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        told += [tuple(map(int, line.split())) for line in out.splitlines()]
    rows, ordinals = committed(store)
    assert sorted(told) == sorted(rows)
    assert len(rows) == 4 * 9
    assert ordinals == {job_id: list(range(9)) for job_id in jobs}
    assert {store.job(job_id).state for job_id in jobs} == {JobState.COMPLETED}
    assert max(seen) <= 9


def test_no_two_claims_get_the_same_job(store):
    for i in range(12):
        store.create_job(job_spec(), None, float(i))
    barrier = threading.Barrier(8)

    def claim_all(i: int) -> list[str]:
        barrier.wait()
        found = []
        while (lease := store.claim(f"r{i}", ["cpu"], 30.0)) is not None:
            found.append(lease.job_id)
        return found

    with ThreadPoolExecutor(8) as pool:
        claimed_ids = [job for found in pool.map(claim_all, range(8)) for job in found]
    # A claim skips rows that another is claiming, and may then find none: what is left is claimed now.
    while (lease := store.claim("last", ["cpu"], 30.0)) is not None:
        claimed_ids.append(lease.job_id)
    assert len(claimed_ids) == len(set(claimed_ids)) == 12


def test_a_killed_runner_loses_nothing_that_was_acknowledged(store, url, clock):
    job, _ = store.create_job(job_spec(max_trials=24), None, 1.0)
    worker = start_worker(url, "doomed", "endless")
    told = [worker.stdout.readline() for _ in range(11)]
    os.killpg(worker.pid, signal.SIGKILL)
    told += worker.communicate(timeout=60)[0].splitlines()
    acknowledged = {tuple(map(int, line.split())) for line in told if len(line.split()) == 2}
    rows, _ = committed(store)
    assert len(acknowledged) >= 11
    assert acknowledged <= set(rows)
    assert len(rows) <= len(acknowledged) + 1, "at most the commit whose acknowledgement was cut off"
    clock.at = store.job(job.id).started_at + 1000  # the lease has run out
    lease = store.claim("next", ["cpu"], 3600.0)
    assert lease.job_id == job.id
    task, number = lease.tasks[0].task_id, 500_000
    while trials := store.reserve(lease, task, [(candidate(number), None)]):
        number += 1
        for trial in trials:
            store.commit(lease, task, measured(trial, 0.5))
    rows, ordinals = committed(store)
    assert len(rows) == len(set(rows)) == 24
    assert ordinals == {job.id: list(range(24))}
    assert len(store.records(lease, task)) == 24


def test_a_runner_that_comes_back_from_a_pause_cannot_write_beside_the_new_one(store, clock):
    """Two runners believe that they hold the job, both write as fast as they can: only one of them may."""
    old = claimed(store, job_spec(max_trials=30), lease_s=1.0)
    clock.at += 2
    new = store.claim("new", ["cpu"], 3600.0)

    def work(lease: Lease) -> int:
        done = 0
        try:
            while trials := store.reserve(lease, old.tasks[0].task_id, [(candidate(done + lease.token * 100), None)]):
                for trial in trials:
                    store.commit(lease, old.tasks[0].task_id, measured(trial, 0.5))
                    done += 1
        except LeaseLost:
            return -1
        return done

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [old, new])) == [-1, 30]


def test_promotions_at_once_leave_one_current_schedule_the_fastest(store):
    count = 5
    leases = [claimed(store, job_spec()) for _ in range(count)]
    barrier = threading.Barrier(count)

    def promote(i: int) -> str:
        barrier.wait()
        return store.promote(leases[i], leases[i].tasks[0].task_id, best_config(0.1 + i / 100), ARTIFACT)

    with ThreadPoolExecutor(count) as pool:
        ids = list(pool.map(promote, range(count)))
    assert store.best(gemm(), TargetQuery(), {}).schedule.id == ids[0]
    assert store.counts().schedules == count
