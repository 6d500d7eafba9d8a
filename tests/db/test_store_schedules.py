"""Schedules: promoted with history, served by exact identity, and never a stale one as if it were right."""

import dataclasses

import pytest
from sqlalchemy import update
from store_nouns import (
    ARTIFACT,
    GPU,
    IDENTITY,
    TARGET,
    best_config,
    candidate,
    claimed,
    device,
    gemm,
    job_spec,
)

from db import StoreDamaged
from db.tables_served import ArtifactRow
from search_space.environment import EnvironmentIdentity
from search_space.errors import InvalidField
from search_space.target import TargetQuery
from tuner.task import Task
from tuner.views import Conflict, NotFound

ANY = TargetQuery()
OTHER_DRIVER = dataclasses.replace(IDENTITY, driver="glibc 2.41")
H200 = EnvironmentIdentity("cuda", "NVIDIA H200", "sm_90a", 132, "580.1", "13.0", "0.27.0", "NVRTC 13", "v1/cold")


def promote(store, workload=None, target=TARGET, artifact=ARTIFACT, **best):
    workload = workload or gemm()
    lease = claimed(store, job_spec(workload), target)
    return store.promote(lease, lease.tasks[0].task_id, best_config(artifact=artifact, **best), artifact)


def test_a_promotion_is_served_with_its_artifact(store, clock):
    schedule_id = promote(store, latency_s=0.5)
    found = store.best(gemm(), ANY, {})
    assert (found.status, found.differs) == ("exact", ())
    assert found.schedule == store.schedule(schedule_id)
    assert (found.schedule.best, found.schedule.workload, found.schedule.target) == (best_config(0.5), gemm(), TARGET)
    assert found.schedule.measured_at == clock.at
    assert store.artifact(found.schedule.best.artifact) == ARTIFACT
    task = store.job(found.schedule.job_id).tasks[0]
    assert (task.best, task.best_latency_s, task.schedule_id) == (best_config(0.5), 0.5, schedule_id)
    assert store.schedules_of_job(found.schedule.job_id) == [found.schedule]
    assert [e.data["schedule_id"] for e in store.events(found.schedule.job_id, 0, 50) if e.kind == "best"] == [
        schedule_id
    ]


def test_a_promotion_without_vendor_and_roofs_comes_back_as_it_was(store):
    names = ("baseline_name", "baseline_latency_s", "speedup", "speedup_ci95", "roofline_bound", "roofline_fraction")
    best = dataclasses.replace(best_config(), **dict.fromkeys(names), ridge_flop_per_byte=None, max_rel_err=None)
    lease = claimed(store, job_spec())
    schedule_id = store.promote(lease, lease.tasks[0].task_id, best, ARTIFACT)
    assert store.schedule(schedule_id).best == best


@pytest.mark.parametrize("order", [(0.5, 0.4), (0.4, 0.5)])
def test_of_two_jobs_for_one_shape_the_faster_is_served(store, order):
    ids = {latency: promote(store, latency_s=latency) for latency in order}
    assert store.best(gemm(), ANY, {}).schedule.id == ids[0.4]
    assert store.schedule(ids[0.5]).best.latency_s == 0.5, "the history is kept"


def test_a_later_promotion_that_is_as_fast_takes_over(store):
    promote(store, latency_s=0.5)
    later = promote(store, latency_s=0.5, chosen=candidate(7))
    assert store.best(gemm(), ANY, {}).schedule.id == later


def test_the_incumbent_is_what_is_served(store):
    task = Task(gemm(), TARGET)
    assert store.incumbent(task, IDENTITY) is None
    promote(store, latency_s=0.5, chosen=candidate(3))
    assert store.incumbent(task, IDENTITY) == (candidate(3), best_config().artifact)
    assert store.incumbent(task, OTHER_DRIVER) is None
    assert store.incumbent(Task(gemm(m=5), TARGET), IDENTITY) is None


def test_an_untuned_shape_or_target_is_missed(store):
    assert store.best(gemm(), ANY, {}).status == "missed"
    promote(store)
    assert store.best(gemm(m=5), ANY, {}).status == "missed"
    for query in (TargetQuery("cuda"), TargetQuery("cpu", arch="skylake"), TargetQuery("cpu", cores=64)):
        found = store.best(gemm(), query, {})
        assert (found.status, found.schedule) == ("missed", None), query
    for query in (TargetQuery("cpu"), TargetQuery("cpu", arch="znver3"), TargetQuery("cpu", "znver3", "EPYC 7763", 2)):
        assert store.best(gemm(), query, {}).status == "exact", query


def test_after_a_driver_update_the_old_schedule_is_stale(store, clock):
    store.heartbeat_devices("r", [device()], 60.0)
    promote(store)
    assert store.best(gemm(), ANY, {}).status == "exact"
    clock.at += 10
    store.heartbeat_devices("r2", [device(identity=OTHER_DRIVER)], 60.0)
    found = store.best(gemm(), ANY, {})
    assert (found.status, found.differs) == ("stale", ("driver",))
    assert found.schedule.best.identity == IDENTITY
    renewed = promote(store, identity=OTHER_DRIVER, latency_s=9.0)
    found = store.best(gemm(), ANY, {})
    assert (found.status, found.schedule.id) == ("exact", renewed)


def test_a_filter_narrows_by_identity(store):
    promote(store)
    promote(store, identity=OTHER_DRIVER, latency_s=0.7)
    for driver, identity in (("glibc 2.36", IDENTITY), ("glibc 2.41", OTHER_DRIVER)):
        found = store.best(gemm(), ANY, {"driver": driver})
        assert (found.status, found.schedule.best.identity) == ("exact", identity)
    found = store.best(gemm(), ANY, {"driver": "glibc 9", "cores": "2"})
    assert (found.status, found.differs) == ("stale", ("driver",))
    assert store.best(gemm(), ANY, {"device": "EPYC 7763"}).status == "exact"
    with pytest.raises(InvalidField, match="colour"):
        store.best(gemm(), ANY, {"colour": "red"})


def test_without_a_known_device_the_newest_schedule_is_served(store, clock):
    promote(store)
    clock.at += 1
    newest = promote(store, identity=OTHER_DRIVER, latency_s=0.9)
    assert store.best(gemm(), ANY, {}).schedule.id == newest


def test_each_kind_of_device_has_its_own_best(store, clock):
    store.heartbeat_devices("r", [device(), device("GPU-1", H200)], 60.0)
    on_cpu = promote(store)
    on_gpu = promote(store, target=GPU, identity=H200, latency_s=0.0001)
    assert store.best(gemm(), TargetQuery("cpu"), {}).schedule.id == on_cpu
    assert store.best(gemm(), TargetQuery("cuda"), {}).schedule.id == on_gpu
    clock.at += 5
    store.heartbeat_devices("r", [device(), device("GPU-1", H200)], 60.0)
    assert store.best(gemm(), ANY, {}).status == "exact"


def test_a_schedule_of_an_older_sketch_is_stale_and_gives_way(open_one):
    versions = {"tiled": 1}
    store = open_one(sketch_version=versions.get)
    promote(store, latency_s=0.1)
    versions["tiled"] = 2
    found = store.best(gemm(), ANY, {})
    assert (found.status, found.differs) == ("stale", ("sketch_version",))
    assert store.incumbent(Task(gemm(), TARGET), IDENTITY) is None
    assert store.nearest(gemm(), ANY, 5) == []
    newer = promote(store, latency_s=0.2, chosen=candidate(1, version=2))
    assert store.best(gemm(), ANY, {}).schedule.id == newer, "slower, but of the sketch that is there now"


def test_neighbours_come_by_distance_and_share_dtypes_and_flags(store):
    near = promote(store, gemm(m=8))
    far = promote(store, gemm(m=64))
    same = promote(store, gemm(m=5))
    promote(store, gemm(m=5, trans_b=True))
    promote(store, gemm(m=5, dtype="bfloat16"))
    promote(store, gemm(m=5), target=GPU, identity=H200)
    found = store.nearest(gemm(m=5, batch=1), TargetQuery("cpu"), 10)
    assert [s.id for s in found] == [same, near, far]
    assert [s.id for s in store.nearest(gemm(m=60), TargetQuery("cpu"), 1)] == [far]
    assert store.nearest(gemm(m=5), TargetQuery("cpu", arch="skylake"), 10) == []


def test_what_cannot_be_promoted_is_refused_whole(store):
    job, _ = store.create_job(job_spec(), None, 1.0)
    lease = store.claim("r", ["cpu"], 30.0)
    task = lease.tasks[0].task_id
    with pytest.raises(Conflict, match="bind"):
        store.promote(lease, task, best_config(), ARTIFACT)
    store.bind(lease, task, Task(gemm(), TARGET))
    with pytest.raises(ValueError, match="hash"):
        store.promote(lease, task, best_config(), b"other bytes")
    with pytest.raises(ValueError, match="JSON"):
        store.promote(lease, task, best_config(float("nan")), ARTIFACT)
    assert store.schedules_of_job(job.id) == []
    assert store.best(gemm(), ANY, {}).status == "missed"
    with pytest.raises(NotFound):
        store.artifact(best_config().artifact)


def test_a_damaged_artifact_is_not_handed_out(store):
    promote(store)
    store._tx.write(lambda s: s.execute(update(ArtifactRow).values(data=b"bit rot")))
    with pytest.raises(StoreDamaged, match="damaged"):
        store.artifact(best_config().artifact)


def test_what_is_not_there_is_not_found(store):
    for call in (store.schedule, store.schedules_of_job, store.artifact):
        with pytest.raises(NotFound):
            call("nothing")


def test_a_schedule_beaten_in_the_same_final_gives_way_to_a_slower_figure(store):
    promote(store, latency_s=0.5, chosen=candidate(1))
    lease = claimed(store, job_spec())
    task_id = lease.tasks[0].task_id
    kept = store.promote(lease, task_id, best_config(0.6, chosen=candidate(2)), ARTIFACT, candidate(9))
    assert store.best(gemm(), ANY, {}).schedule.best.candidate == candidate(1)
    taken = store.promote(lease, task_id, best_config(0.7, chosen=candidate(3)), ARTIFACT, candidate(1))
    assert store.best(gemm(), ANY, {}).schedule.id == taken != kept


def test_a_cpu_schedule_is_exact_beside_a_newer_gpu(store, clock):
    promote(store)
    store.heartbeat_devices("r1", [device()], 30.0)
    clock.at += 10
    store.heartbeat_devices("r1", [device(), device("gpu:0", identity=H200)], 30.0)
    assert store.best(gemm(), ANY, {}).status == "exact"
