"""Made keys: what each scope may do, how much, and what the command line says of them."""

import json
from collections.abc import Callable

import pytest
import typer
from api_world import KEY, new_client
from fastapi.testclient import TestClient
from store_nouns import FakeClock
from typer.testing import CliRunner

from api.auth import CACHE_S
from api.commands import keys as key_commands
from db.store import SqlStore
from tuner.access import UNLIMITED, KeyLimits, Scope

GEMM = {"op": "gemm", "m": 4, "n": 8, "k": 16, "dtype": "fp32"}
JOB = {"workload": GEMM, "max_trials": 10}


@pytest.fixture
def keyed(store: SqlStore, clock: FakeClock) -> TestClient:
    return new_client(store, clock, keyed=True, keys=(KEY,))


@pytest.fixture
def bearer(store: SqlStore) -> Callable[..., dict[str, str]]:
    def make(scope: Scope, limits: KeyLimits = UNLIMITED) -> dict[str, str]:
        return {"Authorization": f"Bearer {store.create_key('someone', scope, limits)[1]}"}

    return make


def test_what_each_scope_may_do(keyed: TestClient, bearer: Callable[..., dict[str, str]]) -> None:
    reader, submitter, admin = (bearer(s) for s in Scope)
    boss = {"Authorization": f"Bearer {KEY}"}
    for who in (reader, submitter, admin, boss):
        assert keyed.get("/v1/jobs", headers=who).status_code == 200
        assert keyed.get("/metrics", headers=who).status_code == 200
        body = {"workloads": [GEMM]}
        assert keyed.post("/v1/schedules/best:batch", json=body, headers=who).status_code == 200
    refused = keyed.post("/v1/jobs", json=JOB, headers=reader)
    assert (refused.status_code, refused.json()["code"], refused.json()["needs"]) == (403, "scope-refused", "submit")
    assert [keyed.post("/v1/jobs", json=JOB, headers=w).status_code for w in (submitter, admin, boss)] == [201] * 3


def test_a_key_steers_its_own_jobs_and_an_admins_all(keyed: TestClient, bearer: Callable[..., dict[str, str]]) -> None:
    first, second, reader, admin = bearer(Scope.SUBMIT), bearer(Scope.SUBMIT), bearer(Scope.READ), bearer(Scope.ADMIN)
    job = keyed.post("/v1/jobs", json=JOB, headers=first).json()["id"]
    for action in ("pause", "resume", "cancel"):
        for who in (second, reader):
            answer = keyed.post(f"/v1/jobs/{job}/{action}", headers=who)
            assert (answer.status_code, answer.json()["code"]) == (403, "scope-refused")
    assert keyed.post(f"/v1/jobs/{job}/pause", headers=first).json()["state"] == "paused"
    assert keyed.post(f"/v1/jobs/{job}/cancel", headers=admin).json()["state"] == "cancelled"
    assert keyed.post("/v1/jobs/job_none/cancel", headers=first).status_code == 404


def test_two_keys_may_choose_one_idempotency_key(keyed: TestClient, bearer: Callable[..., dict[str, str]]) -> None:
    told = [bearer(Scope.SUBMIT) | {"Idempotency-Key": "nightly"} for _ in range(2)]
    ids = [keyed.post("/v1/jobs", json=JOB, headers=h).json()["id"] for h in told]
    assert ids[0] != ids[1]
    assert [keyed.post("/v1/jobs", json=JOB, headers=h).json()["id"] for h in told] == ids


def test_a_revoked_key_opens_nothing(keyed: TestClient, store: SqlStore, clock: FakeClock) -> None:
    view, key = store.create_key("gone", Scope.READ, UNLIMITED)
    told = {"Authorization": f"Bearer {key}"}
    assert keyed.get("/v1/jobs", headers=told).status_code == 200
    entered = keyed.post("/login", data={"key": key, "next": "/"}, follow_redirects=False)
    assert entered.status_code == 303
    assert keyed.get("/v1/jobs").status_code == 200
    store.revoke_key(view.id)
    clock.at += CACHE_S
    for headers in (told, {}):
        answer = keyed.get("/v1/jobs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "key-refused")


def test_a_session_has_the_scope_of_its_key(keyed: TestClient, store: SqlStore) -> None:
    key = store.create_key("reader", Scope.READ, UNLIMITED)[1]
    keyed.post("/login", data={"key": key, "next": "/"})
    assert keyed.get("/v1/jobs").status_code == 200
    assert keyed.post("/v1/jobs", json=JOB).json()["code"] == "scope-refused"


def test_a_key_in_the_database_is_asked_for_without_a_key_file(store: SqlStore, clock: FakeClock) -> None:
    key = store.create_key("only", Scope.READ, UNLIMITED)[1]
    with new_client(store, clock, keyed=True) as client:
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {'x' * 5000}"}).status_code == 401


def test_requests_are_counted_by_key(
    keyed: TestClient, bearer: Callable[..., dict[str, str]], clock: FakeClock
) -> None:
    hasty, other = bearer(Scope.READ, KeyLimits(60, None, None)), bearer(Scope.READ, KeyLimits(60, None, None))
    answers = [keyed.get("/v1/jobs", headers=hasty).status_code for _ in range(11)]
    assert answers == [200] * 10 + [429], "a burst of ten seconds' worth, then no more"
    refused = keyed.get("/v1/jobs", headers=hasty)
    assert (refused.json()["code"], refused.headers["retry-after"]) == ("too-many-requests", "1")
    assert keyed.get("/v1/jobs", headers=other).status_code == 200
    clock.at += float(refused.headers["retry-after"])
    assert keyed.get("/v1/jobs", headers=hasty).status_code == 200
    assert keyed.get("/v1/jobs", headers=hasty).status_code == 429


def test_open_jobs_are_limited_until_one_ends(keyed: TestClient, bearer: Callable[..., dict[str, str]]) -> None:
    told = bearer(Scope.SUBMIT, KeyLimits(None, 2, None))
    jobs = [keyed.post("/v1/jobs", json=JOB, headers=told).json()["id"] for _ in range(2)]
    refused = keyed.post("/v1/jobs", json=JOB, headers=told)
    assert (refused.status_code, refused.json()["code"]) == (429, "limit-reached")
    assert int(refused.headers["retry-after"]) >= 1
    keyed.post(f"/v1/jobs/{jobs[0]}/cancel", headers=told)
    assert keyed.post("/v1/jobs", json=JOB, headers=told).status_code == 201


def test_open_trials_are_limited(keyed: TestClient, bearer: Callable[..., dict[str, str]]) -> None:
    told = bearer(Scope.SUBMIT, KeyLimits(None, None, 15))
    assert keyed.post("/v1/jobs", json=JOB, headers=told).status_code == 201
    refused = keyed.post("/v1/jobs", json=JOB, headers=told)
    assert (refused.status_code, refused.json()["code"]) == (429, "limit-reached")
    assert keyed.post("/v1/jobs", json=JOB | {"max_trials": 5}, headers=told).status_code == 201


@pytest.fixture
def command(store: SqlStore) -> Callable[..., str]:
    app = typer.Typer()
    key_commands.add(app)
    url = str(store._tx.engine.url)

    def run(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments, "--db", url])
        assert done.exit_code == status, done.output
        return done.output

    @app.command()
    def other() -> None:
        """Typer makes a group only of more than one command."""

    return run


def test_the_command_makes_lists_and_revokes(command: Callable[..., str], store: SqlStore) -> None:
    made = json.loads(command("keys", "create", "--name", "ci", "--scope", "submit", "--open-jobs", "3", "--json"))
    assert made["key"].startswith("tw_")
    assert made["limits"] == {"requests_per_minute": 600, "open_jobs": 3, "open_trials": 100_000}
    found = store.find_key(made["key"])
    assert found is not None
    assert (found.id, found.scope, found.limits.open_jobs) == (made["id"], Scope.SUBMIT, 3)
    plain = command("keys", "create", "--name", "free", "--scope", "read", "--requests-per-minute", "0").strip()
    free = store.find_key(plain)
    assert free is not None
    assert free.limits.requests_per_minute is None
    listed = json.loads(command("keys", "list", "--json"))
    assert [(k["name"], k["scope"], k["revoked_at"]) for k in listed] == [
        ("ci", "submit", None),
        ("free", "read", None),
    ]
    assert made["key"] not in command("keys", "list")
    command("keys", "revoke", made["id"])
    assert store.find_key(made["key"]) is None
    command("keys", "revoke", "key_none", status=1)
    command("keys", "create", "--name", " ", status=2)
