"""A finished job that is added at once leaves the rows that a runner would have left, call by call."""

import json

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session
from store_nouns import ARTIFACT, TARGET, best_config, candidate, claimed, failed, gemm, job_spec, ok

from db import FinishedTask, FinishedTrial, SqlStore
from db.tables import EventRow, JobRow, MeasurementRow, OutcomeRow, TaskRow, TrialRow
from db.tables_served import ScheduleRow
from tuner.job import JobState, StopReason
from tuner.outcome import Outcome
from tuner.ports import Measured
from tuner.task import Task

SPEC = job_spec(gemm(4), gemm(5), max_trials=20)
MEASUREMENTS = [[ok(0.003), failed(), ok(0.001), ok(0.002), failed(Outcome.WRONG_ANSWER)], [failed(), ok(0.5)]]
# What says who and when: names drawn at random, and the runner.
RANDOM = {"idempotency_key", "lease_runner"}


def by_calls(store: SqlStore) -> str:
    lease = claimed(store, SPEC)
    for task, measurements in zip(lease.tasks, MEASUREMENTS, strict=True):
        wanted = [(candidate(i), 0.25) for i in range(len(measurements))]
        trials = store.reserve(lease, task.task_id, wanted)
        for trial, measurement in zip(trials, measurements, strict=True):
            store.commit(lease, task.task_id, Measured(trial, measurement, "f" * 64))
        if task.index == 0:
            store.promote(lease, task.task_id, best_config(chosen=candidate(2)), ARTIFACT)
        store.finish_task(lease, task.task_id, StopReason.TRIALS)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)
    return lease.job_id


def at_once(store: SqlStore) -> str:
    finished = [
        FinishedTask(
            Task(spec.workload, TARGET),
            [FinishedTrial(candidate(i), m, "f" * 64, 0.25) for i, m in enumerate(measurements)],
            (best_config(chosen=candidate(2)), ARTIFACT) if index == 0 else None,
        )
        for index, (spec, measurements) in enumerate(zip(SPEC.tasks, MEASUREMENTS, strict=True))
    ]
    return store.add_finished_job(SPEC, finished)


def rows_of(store: SqlStore, job_id: str) -> dict[str, list[dict[str, object]]]:
    """Every row of the job, with what differs from one database's numbering to the next taken out."""

    def read(session: Session) -> dict[str, list[dict[str, object]]]:
        tasks = list(session.scalars(select(TaskRow.id).where(TaskRow.job_id == job_id).order_by(TaskRow.id)))
        trials = list(session.scalars(select(TrialRow.id).where(TrialRow.job_id == job_id).order_by(TrialRow.id)))
        found = {}
        for table in (JobRow, TaskRow, TrialRow, EventRow, OutcomeRow, ScheduleRow, MeasurementRow):
            owner = (
                table.task_id.in_(tasks) if table is MeasurementRow else getattr(table, "job_id", JobRow.id) == job_id
            )
            names = [c.key for c in inspect(table).columns if c.key not in RANDOM]
            rows = session.execute(select(*(getattr(table, n) for n in names)).where(owner)).mappings().all()
            found[table.__tablename__] = sorted((_plain(dict(r), job_id, tasks, trials) for r in rows), key=repr)
        return found

    return store._tx.read(read)


def _plain(row: dict[str, object], job_id: str, tasks: list[int], trials: list[int]) -> dict[str, object]:
    for name, value in row.items():
        if value == job_id:
            row[name] = "job"
        elif name == "schedule_id" or (name == "id" and str(value).startswith("sch_")):
            row[name] = value and "schedule"
        elif name == "task_id" or (name == "id" and "workload" in row):
            row[name] = tasks.index(value)
        elif name == "trial_id" or (name == "id" and "candidate_key" in row):
            row[name] = trials.index(value)
        elif name == "id":
            row[name] = "measurement"
        elif name == "data":
            data = json.loads(value)  # the order of the names does not matter
            data |= {n: trials.index(data[n]) for n in ("id", "trial") if n in data}
            row[name] = data | ({"schedule_id": "schedule"} if "schedule_id" in data else {})
    return row


def test_the_rows_are_those_of_the_calls(store):
    expected = rows_of(store, by_calls(store))
    found = rows_of(store, at_once(store))
    assert set(found) == set(expected)
    for table, rows in expected.items():
        assert rows, table
        assert found[table] == rows, table
    assert len(found["measurements"]) == 7


def test_what_was_added_is_read_back_like_any_job(store):
    job_id = at_once(store)
    job = store.job(job_id)
    assert (job.state, job.stop_reason, job.trials_done, job.trials_ok) == ("completed", "trials", 7, 4)
    assert job.failed_by == {Outcome.BUILD_ERROR: 2, Outcome.WRONG_ANSWER: 1}
    assert [p.best_latency_s for p in store.progress(job_id, 0, 100)] == [0.003, 0.003, 0.001, 0.001, 0.001]
    assert store.best(gemm(4), SPEC.target, {}).schedule is not None
    assert [e.sequence for e in store.events(job_id, 0, 1000)] == list(range(1, job.last_event + 1))


@pytest.mark.parametrize("wrong", ["another workload", "twice", "too many"])
def test_what_does_not_fit_is_refused_and_leaves_nothing(store, wrong):
    trial = FinishedTrial(candidate(0), ok(0.001))
    workload = gemm(9) if wrong == "another workload" else gemm(4)
    trials = {"another workload": [trial], "twice": [trial, trial]}.get(
        wrong, [FinishedTrial(candidate(i), ok(0.001)) for i in range(3)]
    )
    with pytest.raises(ValueError, match=r"not the job's tasks|there twice|max_trials"):
        store.add_finished_job(job_spec(gemm(4), max_trials=2), [FinishedTask(Task(workload, TARGET), trials)])
    assert not store.jobs(None, 10, None).items
