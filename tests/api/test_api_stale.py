"""What became stale is listed, and `tilewright refresh` submits it again."""

import dataclasses
import json

from api_world import SKETCHES, finish, new_client
from fastapi.testclient import TestClient
from store_nouns import IDENTITY, FakeClock, claimed, device, gemm, job_spec
from typer import Typer
from typer.testing import CliRunner

from db.store import SqlStore
from tilewright.cli.refresh import bodies, refresh

NEWER = dataclasses.replace(IDENTITY, driver="glibc 2.40", compiler="LLVM 21")


def tuned(store: SqlStore, *sizes: int) -> None:
    for m in sizes:
        finish(store, claimed(store, job_spec(gemm(m))))


def test_nothing_is_stale_until_the_device_changes(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    tuned(store, 4, 5)
    assert client.get("/v1/stale").json() == {"items": [], "next_cursor": None}
    clock.at += 5.0
    store.heartbeat_devices("runner-1", [device(identity=NEWER)], 60.0)
    items = client.get("/v1/stale").json()["items"]
    assert [i["differs"] for i in items] == [["driver", "compiler"]] * 2
    assert {i["workload"]["m"] for i in items} == {4, 5}
    assert {i["target"]["kind"] for i in items} == {"cpu"}


def test_pages_hold_each_once(client: TestClient, store: SqlStore, clock: FakeClock) -> None:
    tuned(store, *range(4, 11))
    clock.at += 5.0
    store.heartbeat_devices("runner-1", [device(identity=NEWER)], 60.0)
    seen, cursor = [], None
    while True:
        page = client.get("/v1/stale", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [i["workload"]["m"] for i in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == list(range(4, 11))
    assert client.get("/v1/stale", params={"cursor": "nonsense"}).status_code == 400


def test_a_new_sketch_version_makes_stale(store: SqlStore, clock: FakeClock) -> None:
    tuned(store, 4)
    store._version = lambda name: 2 if name in SKETCHES else None
    with new_client(store, clock) as client:
        assert client.get("/v1/stale").json()["items"][0]["differs"] == ["sketch_version"]


def test_refresh_submits_what_is_stale_and_then_nothing_more(store: SqlStore, clock: FakeClock) -> None:
    tuned(store, 4, 5)
    clock.at += 5.0
    store.heartbeat_devices("runner-1", [device(identity=NEWER)], 1e9)
    app = Typer()
    app.command()(refresh)

    def run(*arguments: str) -> dict[str, list[object]]:
        url = str(store._tx.engine.url)
        done = CliRunner().invoke(app, [*arguments, "--db", url, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    assert (len(run("--dry-run")["stale"]), run("--dry-run")["jobs"]) == (2, [])
    (job_id,) = run("--trials", "8")["jobs"]
    spec = store.job(str(job_id)).spec
    assert (len(spec.tasks), spec.max_trials, spec.priority, spec.target.kind) == (2, 16, -10, "cpu")


def test_each_kind_of_device_gets_a_job_of_its_own() -> None:
    items = [{"workload": gemm(m).to_json(), "target": {"kind": k}} for m in (1, 2) for k in ("cpu", "cuda")]
    made = bodies(items, trials=10, priority=0)
    assert [(b["target"], len(b["tasks"]), b["max_trials"]) for b in made] == [("cpu", 2, 20), ("cuda", 2, 20)]
