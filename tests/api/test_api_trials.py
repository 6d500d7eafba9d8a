"""Trials, the curve of the best, and single trials over HTTP."""

import json

import pytest
from api_world import finish, measure
from fastapi.testclient import TestClient
from store_nouns import candidate, claimed, gemm, job_spec, ok

from db.store import SqlStore
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import Measured


def test_trials_come_in_order_with_null_where_there_is_no_number(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(max_trials=8))
    measure(store, lease, [0.003, None, 0.0015])
    items = client.get(f"/v1/jobs/{lease.job_id}/trials").json()["items"]
    assert [t["number"] for t in items] == [0, 1, 2]
    assert [t["outcome"] for t in items] == ["OK", "BUILD_ERROR", "OK"]
    assert [t["latency_s"] for t in items] == [0.003, None, 0.0015]
    assert items[0]["latency_ci95_s"] == pytest.approx([0.00297, 0.00303])
    assert (items[1]["error"], items[1]["latency_ci95_s"]) == ("undefined symbol", None)
    assert items[0]["knobs"] == {"tile": 4, "number": 0}
    assert items[0]["started_at"] == "1970-01-01T00:00:10Z"
    one = client.get(f"/v1/trials/{items[0]['id']}").json()
    assert one == {**items[0], "workload": one["workload"], "target": one["target"]}
    assert (one["workload"]["m"], one["target"]["arch"]) == (4, "znver3")


def test_pages_and_filters(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(), gemm(m=5), max_trials=20))
    measure(store, lease, [0.003, None, 0.002], task=0)
    measure(store, lease, [0.004, None, 0.005], task=1)
    base = f"/v1/jobs/{lease.job_id}/trials"

    def numbers(query: str) -> list[int]:
        return [t["number"] for t in client.get(f"{base}?{query}").json()["items"]]

    assert numbers("task=1") == [3, 4, 5]
    assert numbers("outcome=BUILD_ERROR") == [1, 4]
    assert numbers("task=0&outcome=OK") == [0, 2]
    assert numbers("order=desc") == [5, 4, 3, 2, 1, 0]
    for order, wanted in (("asc", [0, 1, 2, 3, 4, 5]), ("desc", [5, 4, 3, 2, 1, 0])):
        page = client.get(f"{base}?limit=4&order={order}").json()
        rest = client.get(f"{base}?limit=4&order={order}&cursor={page['next_cursor']}").json()
        assert [t["number"] for t in page["items"] + rest["items"]] == wanted
        assert rest["next_cursor"] is None
        turned = "desc" if order == "asc" else "asc"
        assert client.get(f"{base}?order={turned}&cursor={page['next_cursor']}").status_code == 400
    for query in ("task=2", "task=-1", "outcome=FINE", "order=up", "limit=0"):
        assert client.get(f"{base}?{query}").status_code == 422, query


def test_what_a_measurer_could_not_time_is_null_and_strictly_json(client: TestClient, store: SqlStore) -> None:
    """A trial that measured NaN or Infinity is stored without a number (O22)."""
    lease = claimed(store, job_spec(max_trials=8))
    measure(store, lease, [1.0])
    task = lease.tasks[0].task_id
    for number, text in enumerate(("nan", "inf", "-inf")):
        (trial,) = store.reserve(lease, task, [(candidate(number), float(text))])
        wrong = Measurement(Outcome.RUN_ERROR, error=f"the time was {text}")
        store.commit(lease, task, Measured(trial, wrong))
    pages = [f"/v1/jobs/{lease.job_id}", f"/v1/jobs/{lease.job_id}/trials", f"/v1/jobs/{lease.job_id}/progress"]
    job, trials, progress = (strict(client.get(page).content) for page in pages)
    assert job["tasks"][0]["best"]["latency_s"] == 1.0
    assert [t["latency_s"] for t in trials["items"]] == [1.0, None, None, None]
    assert [t["predicted_score"] for t in trials["items"]] == [0.5, None, None, None]
    assert {p["best_latency_s"] for p in progress["items"][0]["points"]} == {1.0}
    assert client.get(f"/jobs/{lease.job_id}").status_code == 200


def strict(raw: bytes) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(raw, parse_constant=pytest.fail)
    return found


def test_progress_keeps_the_best_of_each_task(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(), gemm(m=5), max_trials=200))
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", ok(0.002))
    measure(store, lease, [0.01 / (1 + i) if i % 3 else None for i in range(60)], task=0)
    first, second = client.get(f"/v1/jobs/{lease.job_id}/progress?points=10").json()["items"]
    assert (first["task"], second["task"], second["points"]) == (0, 1, [])
    assert first["baseline"]["latency_s"] == 0.002
    bests = [p["best_latency_s"] for p in first["points"] if p["best_latency_s"] is not None]
    assert bests == sorted(bests, reverse=True)
    assert bests[-1] == pytest.approx(0.01 / 60)
    (only,) = client.get(f"/v1/jobs/{lease.job_id}/progress?task=1").json()["items"]
    assert only["task"] == 1
    assert client.get(f"/v1/jobs/{lease.job_id}/progress?task=2").status_code == 422


def test_the_winners_of_a_job_are_listed(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(), gemm(m=5), max_trials=20))
    assert client.get(f"/v1/jobs/{lease.job_id}/schedules").json()["items"] == []
    ids = finish(store, lease)
    items = client.get(f"/v1/jobs/{lease.job_id}/schedules").json()["items"]
    assert {s["schedule"]["id"] for s in items} == set(ids)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/job_none",
        "/v1/jobs/job_none/trials",
        "/v1/jobs/job_none/trials?task=0",
        "/v1/jobs/job_none/progress",
        "/v1/jobs/job_none/schedules",
        "/v1/jobs/job_none/events",
        "/v1/trials/1",
        "/v1/trials/9223372036854775807",
        "/v1/schedules/none",
        "/v1/schedules/none/artifact",
        "/v1/nothing",
        "/v1/jobs/",
    ],
)
def test_what_is_not_there_is_a_404_problem(steady: TestClient, path: str) -> None:
    answer = steady.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["status"] == 404


@pytest.mark.parametrize("path", ["/v1/jobs/a%20b", "/v1/jobs/" + "x" * 65, "/v1/trials/0", "/v1/trials/x"])
def test_ids_that_cannot_be_are_422(steady: TestClient, path: str) -> None:
    answer = steady.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-field")


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/jobs"), ("PUT", "/v1/targets"), ("HEAD", "/v1/jobs")])
def test_another_method_is_a_405_problem_that_names_the_allowed(steady: TestClient, method: str, path: str) -> None:
    answer = steady.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json")
    assert answer.headers["allow"] == ("GET, POST" if path == "/v1/jobs" else "GET")
