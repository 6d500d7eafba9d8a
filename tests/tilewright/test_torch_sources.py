"""Where schedules come from: folders and a live service, damaged, foreign and stale ones; misses go back as a job."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from api_world import LiveServer, new_store
from store_nouns import FakeClock, best_config, claimed, device, job_spec, ok

import tilewright.torch as tw
from db import migrate
from db.store import SqlStore
from search_space.candidate import Candidate
from search_space.workload import parse_workload
from tilewright.client import Client
from tilewright.export import write_schedule
from tilewright.runtime import Artifact, ArtifactError
from tuner.job import JobState, StopReason

A, B = torch.arange(42.0).reshape(6, 7), torch.arange(70.0).reshape(7, 10)


@pytest.fixture(autouse=True)
def serving(winners: Path) -> Iterator[None]:
    tw.use(winners)
    yield
    tw.clear()


def test_a_damaged_folder_is_refused_and_the_table_stays(winners: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no index"):
        tw.use(tmp_path)
    for text in ("{", "[]", '{"schedules": [1]}', '{"schedules": [{}]}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(ArtifactError, match="damaged"):
            tw.use(tmp_path)
    index = json.loads((winners / "index.json").read_text())
    for entry in index["schedules"]:
        file = tmp_path / entry["file"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((winners / entry["file"]).read_bytes()[:-7])
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match="re-export"):
        tw.use(tmp_path)
    tw.matmul(A, B)
    assert tw.counts().tuned == 1


def test_a_foreign_schedule_is_left_out_with_a_warning_that_names_it(winners: Path, tmp_path: Path) -> None:
    entries = []
    for number, entry in enumerate(json.loads((winners / "index.json").read_text())["schedules"][:2]):
        artifact = Artifact.from_bytes((winners / entry["file"]).read_bytes())
        if number == 0:
            launch = {**artifact.manifest["launch"], "machine": "pdp11"}  # type: ignore[dict-item]
            artifact = Artifact({**artifact.manifest, "launch": launch}, artifact.files)
        schedule = {**entry, "artifact": artifact.digest}
        detail = {"schedule": schedule, "served": {"kind": "tilewright"}, "environment": {}}
        entries.append(write_schedule(tmp_path, detail, artifact.to_bytes())[1])
    (tmp_path / "index.json").write_text(json.dumps({"schema": 1, "schedules": entries}))
    with pytest.warns(tw.ScheduleSkipped, match=r"sch_0 .*m=6.*pdp11") as caught:
        assert tw.use(tmp_path) == 1
    assert caught[0].filename == __file__
    tw.matmul(A, B)
    assert tw.misses()[0].reason == "untuned"
    tw.linear(A, B.T.contiguous(), torch.zeros(10), "gelu")
    assert tw.counts().tuned == 1


def new_service(folder: Path, clock: FakeClock) -> SqlStore:
    migrate(f"sqlite:///{folder / 'service.sqlite'}")
    store = new_store(folder / "service.sqlite", clock)
    store.heartbeat_devices("runner-1", [device()], 60.0)
    return store


def promote(store: SqlStore, workload: dict[str, Any], blob: bytes, version: int) -> None:
    """A completed job whose winner is `blob`, made by `version` of a sketch that stands at 1."""
    lease = claimed(store, job_spec(parse_workload(workload)))
    (task,) = lease.tasks
    chosen = Candidate.of("tiled", version, {"tile": 4})
    store.set_baseline(lease, task.task_id, "torch.matmul", ok(0.002))
    store.promote(lease, task.task_id, best_config(chosen=chosen, artifact=blob), blob)
    store.finish_task(lease, task.task_id, StopReason.TRIALS)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)


def test_a_server_with_a_stale_and_a_foreign_schedule_serves_the_rest(winners: Path, tmp_path: Path) -> None:
    clock = FakeClock()
    store = new_service(tmp_path, clock)
    entry = json.loads((winners / "index.json").read_text())["schedules"][0]
    good = (winners / entry["file"]).read_bytes()
    artifact = Artifact.from_bytes(good)
    foreign = Artifact({**artifact.manifest, "kind": "abacus"}, artifact.files).to_bytes()
    for m, blob, version in ((6, good, 1), (7, foreign, 1), (8, good, 0)):
        promote(store, {**entry["workload"], "m": m}, blob, version)
    with LiveServer(store, clock) as server, pytest.warns(tw.ScheduleSkipped) as caught:
        assert tw.use(server.url) == 1
    told = [str(w.message) for w in caught if w.category is tw.ScheduleSkipped]
    assert len(told) == 2
    assert any(re.search(r"sch_\S+ .*m=7 .*abacus", text) for text in told)
    assert any(re.search(r"sch_\S+ .*m=8 .*differs in sketch_version", text) for text in told)
    assert {w.filename for w in caught if w.category is tw.ScheduleSkipped} == {__file__}
    tw.matmul(A, B)
    assert tw.counts().tuned == 1
    store.close()


def test_misses_are_submitted_as_a_job_weighted_by_their_calls(tmp_path: Path) -> None:
    store = new_service(tmp_path, FakeClock())
    with LiveServer(store, FakeClock()) as server:
        assert tw.submit_misses(server.url) == []
        for rows, calls in ((3, 1), (5, 2)):
            for _ in range(calls):
                tw.matmul(torch.randn(rows, 7), B)
        tw.matmul(A.double(), B.double())  # no sketch takes it: not part of the job
        (job,) = tw.submit_misses(server.url, trials=8, preset="quick")
        with Client(server.url) as client:
            seen = client.job(job["id"])
    store.close()
    assert seen["name"] == "missed shapes"
    assert seen["max_trials"] == 16
    assert [(t["workload"]["m"], t["weight"]) for t in seen["tasks"]] == [(5, 2.0), (3, 1.0)]
