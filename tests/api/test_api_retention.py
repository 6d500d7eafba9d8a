"""DELETE /v1/jobs/{id}, the service's own pruning, and the commands."""

import asyncio
import json

import pytest
from api_world import claimed_job, finish, new_app
from fastapi.testclient import TestClient
from store_nouns import FakeClock
from typer.testing import CliRunner

from db.store import SqlStore
from tilewright.cli.jobs import jobs_app
from tuner.views import NotFound


def ended(store: SqlStore) -> str:
    lease = claimed_job(store, [0.003, None, 0.002])
    finish(store, lease)
    return lease.job_id


def test_an_ended_job_is_removed_but_for_its_winner(client: TestClient, store: SqlStore) -> None:
    job = ended(store)
    gone = client.delete(f"/v1/jobs/{job}").json()
    assert gone == {"id": job, "deleted": False, "trials": 3, "schedules": 0}
    assert client.get(f"/v1/jobs/{job}/trials").json()["items"] == []
    assert client.get(f"/v1/jobs/{job}/progress").status_code == 200
    assert client.get(f"/jobs/{job}", headers={"Accept": "text/html"}).status_code == 200
    assert client.get(f"/v1/jobs/{job}/events").status_code == 204
    assert len(client.get(f"/v1/jobs/{job}/schedules").json()["items"]) == 1
    assert client.delete(f"/v1/jobs/{job}", params={"winners": "remove"}).json()["deleted"] is True
    assert client.get(f"/v1/jobs/{job}").status_code == 404
    assert client.delete(f"/v1/jobs/{job}").status_code == 404


def test_a_job_that_works_is_not_removed(client: TestClient, store: SqlStore) -> None:
    job = claimed_job(store, [0.003]).job_id
    answer = client.delete(f"/v1/jobs/{job}")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert client.delete(f"/v1/jobs/{job}", params={"winners": "maybe"}).status_code == 422


def test_the_service_prunes_by_itself(store: SqlStore, clock: FakeClock) -> None:
    old = ended(store)
    clock.at += 1000.0
    young = ended(store)
    app = new_app(store, clock, keep_jobs_s=500.0)

    async def live_for_a_moment() -> None:
        async with app.router.lifespan_context(app):
            for _ in range(200):
                await asyncio.sleep(0.05)
                if [j.id for j in store.jobs(None, 10, None).items] == [young]:
                    return

    asyncio.run(live_for_a_moment())
    with pytest.raises(NotFound):  # the young one's winner is served in place of its own
        store.job(old)
    assert store.job(young).pruned_at is None


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", ""])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    done = CliRunner().invoke(jobs_app, ["prune", "--older-than", age])
    assert done.exit_code == 2


def test_the_commands_delete_and_prune(store: SqlStore) -> None:
    url = str(store._tx.engine.url)
    first, second = ended(store), ended(store)  # ended in 1970, by the test's clock

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(jobs_app, [*arguments, "--db", url, "--json"])
        assert done.exit_code == 0, done.output
        return done.stdout

    planned = json.loads(run("prune", "--older-than", "1d", "--dry-run"))
    assert {i["id"] for i in planned["items"]} == {first, second}
    assert len(store.trials(first, None, None, 10, None).items) == 3
    gone = json.loads(run("prune", "--older-than", "1d"))["items"]
    assert {i["id"]: i["deleted"] for i in gone} == {first: True, second: False}
    assert json.loads(run("delete", second, "--winners", "remove"))["deleted"] is True
    assert store.jobs(None, 10, None).items == []
