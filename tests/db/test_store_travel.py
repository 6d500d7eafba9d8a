"""Archives: what one database measured, in another; every damage is refused before a row is written."""

import json
import zipfile

import pytest
from store_nouns import TARGET, best_config, candidate, claimed, failed, gemm, job_spec, ok

from api.archive import MANIFEST, BadArchive, read_archive, write_archive
from db import migrate, open_store
from db.travel import BadContent
from tuner.job import JobState, StopReason
from tuner.ports import Measured
from tuner.task import Task
from tuner.views import Keep


@pytest.fixture
def elsewhere(tmp_path):
    """Another site's database (SQLite, whatever the test's own is)."""
    migrate(str(tmp_path / "elsewhere.db"))
    store = open_store(str(tmp_path / "elsewhere.db"))
    yield store
    store.close()


def run_job(store, m=4, latency_s=0.001, artifact=b"winner", state=JobState.COMPLETED):
    """A job of two tasks, the first with a winner, ended in `state`; its id."""
    lease = claimed(store, job_spec(gemm(m), gemm(m, n=99), max_trials=20))
    for task in lease.tasks:
        store.set_baseline(lease, task.task_id, "torch.matmul", ok(0.002))
        for trial in store.reserve(lease, task.task_id, [(candidate(i), 0.5) for i in range(3)]):
            store.commit(lease, task.task_id, Measured(trial, failed() if trial.ordinal == 1 else ok(latency_s)))
    first = lease.tasks[0].task_id
    store.promote(lease, first, best_config(latency_s, chosen=candidate(2), artifact=artifact), artifact)
    if state is JobState.COMPLETED:
        for task in lease.tasks:
            store.finish_task(lease, task.task_id, StopReason.TRIALS)
    store.finish_job(lease, state, StopReason.TRIALS, "odd: it broke" if state is JobState.FAILED else None)
    return lease.job_id


def shown(store, job_id):
    job = store.job(job_id)
    trials = store.trials(job_id, None, None, 100, None).items
    events_and_seconds = {"last_event": 0, "phase_seconds": 0, "elapsed_s": 0}
    return (
        {k: v for k, v in vars(job).items() if k not in events_and_seconds},
        [{k: v for k, v in vars(t).items() if k != "id"} for t in trials],
        store.schedules_of_job(job_id),
    )


def test_jobs_arrive_as_they_were(store, elsewhere, tmp_path):
    jobs = [run_job(store), run_job(store, m=5, artifact=b"five", state=JobState.FAILED)]
    cancelled = claimed(store, job_spec(gemm(6)))
    store.cancel(cancelled.job_id, 5.0)
    open_job, _ = store.create_job(job_spec(gemm(7)), None, 1.0)
    carried = write_archive(store, tmp_path / "a.tilewright", None, 1.0)
    assert (carried.jobs, carried.records) == (2, 12), "the others measured nothing, or have not ended"
    assert read_archive(elsewhere, tmp_path / "a.tilewright").added == 2
    for job in jobs:
        assert shown(elsewhere, job) == shown(store, job)
    found = elsewhere.best(gemm(4), job_spec().target, {})
    assert elsewhere.artifact(found.schedule.best.artifact) == b"winner"
    records = elsewhere.related_records(Task(gemm(4), TARGET), 100)
    assert sorted(map(repr, records)) == sorted(map(repr, store.related_records(Task(gemm(4), TARGET), 100)))
    assert open_job.id not in {j.id for j in elsewhere.jobs(None, 10, None).items}


def test_nothing_is_doubled_however_often_it_travels(store, elsewhere, tmp_path):
    run_job(store)
    write_archive(store, tmp_path / "a.zip", None, 1.0)
    for added in (1, 0, 0):
        assert read_archive(elsewhere, tmp_path / "a.zip").added == added
    theirs = run_job(elsewhere, m=9)
    write_archive(elsewhere, tmp_path / "b.zip", None, 1.0)
    assert read_archive(store, tmp_path / "b.zip").added == 1, "what came from here is here"
    assert {j.id for j in store.jobs(None, 10, None).items} == {j.id for j in elsewhere.jobs(None, 10, None).items}
    assert store.job(theirs).trials_done == 6
    assert len(store.related_records(Task(gemm(4), TARGET), 100)) == 12


def test_of_two_sites_winners_the_faster_is_served(store, elsewhere, tmp_path):
    slow, fast = run_job(store, latency_s=0.002, artifact=b"slow"), run_job(elsewhere, artifact=b"fast")
    for name, source, goal in (("a", store, elsewhere), ("b", elsewhere, store)):
        write_archive(source, tmp_path / name, [slow if name == "a" else fast], 1.0)
        read_archive(goal, tmp_path / name)
    for site in (store, elsewhere):
        assert site.best(gemm(4), job_spec().target, {}).schedule.job_id == fast


def test_winners_travel_without_records_and_after_pruning(store, elsewhere, tmp_path):
    job = run_job(store)
    store.remove_job(job, Keep(), 5.0)
    carried = write_archive(store, tmp_path / "w.zip", None, 1.0, records=False)
    assert (carried.jobs, carried.records) == (1, 0)
    read_archive(elsewhere, tmp_path / "w.zip")
    assert elsewhere.best(gemm(4), job_spec().target, {}).schedule.job_id == job
    assert elsewhere.trials(job, None, None, 10, None).items == []


def rewritten(path, change):
    """A copy of the archive with the members that `change` gives."""
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    change(members)
    out = path.with_suffix(".changed")
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out


def flip(members, prefix):
    name = next(n for n in members if n.startswith(prefix))
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])


def newer(members):
    members[MANIFEST] = json.dumps({**json.loads(members[MANIFEST]), "version": 2}).encode()


DAMAGES = {
    "a job": (lambda m: flip(m, "jobs/"), "damaged"),
    "an artifact": (lambda m: flip(m, "artifacts/"), "damaged"),
    "a member more": (lambda m: m.update({"../../etc/passwd": b"x"}), "members are not those"),
    "a member less": (lambda m: m.pop(next(n for n in m if n.startswith("artifacts/"))), "members are not those"),
    "no manifest": (lambda m: m.pop(MANIFEST), "no manifest"),
    "another format": (lambda m: m.update({MANIFEST: b'{"format": "tar"}'}), "not a tilewright archive"),
    "a newer version": (newer, "upgrade the program"),
    "a list": (lambda m: m.update({MANIFEST: b"[]"}), "no object"),
    "no json": (lambda m: m.update({MANIFEST: b"{"}), "no JSON"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_changes_nothing(store, elsewhere, tmp_path, damage):
    run_job(elsewhere)
    write_archive(elsewhere, tmp_path / "a.zip", None, 1.0)
    change, message = DAMAGES[damage]
    with pytest.raises(BadArchive, match=message):
        read_archive(store, rewritten(tmp_path / "a.zip", change))
    assert store.jobs(None, 10, None).items == []


def test_what_is_no_archive_is_refused(store, tmp_path):
    whole = tmp_path / "a.zip"
    run_job(store)
    write_archive(store, whole, None, 1.0)
    for name, data in (("text", b"hello" * 100), ("empty", b""), ("half", whole.read_bytes()[:-200])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadArchive):
            read_archive(store, tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(state="running"), "not an end"),
        (lambda c: c.update(id="../job"), "not a job's"),
        (lambda c: c["spec"].update(max_trials=-1), "max_trials"),
        (lambda c: c["tasks"].pop(), "are told of"),
        (lambda c: c["tasks"][0]["trials"].append(c["tasks"][0]["trials"][0]), "there twice"),
        (lambda c: c["tasks"][0]["trials"][0]["measurement"].update(run_secs=[-1.0]), "finite and positive"),
        (lambda c: c["tasks"][0]["winner"]["best"].update(artifact="0" * 64), "is not there"),
        (lambda c: c.pop("spec"), "spec"),
    ],
)
def test_a_job_that_cannot_be_right_is_refused_whole(store, elsewhere, change, message):
    job = run_job(elsewhere)
    content = elsewhere.job_content(job)
    artifacts = {content["tasks"][0]["winner"]["best"]["artifact"]: b"winner"}
    change(content)
    with pytest.raises(BadContent, match=message):
        store.add_job_content(content, artifacts)
    assert store.jobs(None, 10, None).items == []
