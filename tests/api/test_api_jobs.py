"""Submitting, listing and steering jobs over HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_world import SKETCHES, HalfPrecision, finish, measure, new_client
from fastapi.testclient import TestClient
from store_nouns import GPU, TARGET, FakeClock, claimed, job_spec, ok

from db.store import SqlStore
from search_space import registry
from search_space.registry import all_sketches
from tuner.job import JobState, StopReason

GEMM = {"op": "gemm", "m": 4, "n": 8, "k": 16, "dtype": "fp32"}


def submit(client: TestClient, body: object, **headers: str) -> httpx.Response:
    return client.post("/v1/jobs", json=body, headers=headers)


def test_a_job_is_created_with_its_canonical_form(client: TestClient) -> None:
    answer = submit(client, {"name": "one", "workload": GEMM, "target": "llvm", "max_trials": 5, "seed": 7})
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["state"] == "queued"
    assert job["target"]["kind"] == "cpu"
    assert job["tasks"][0]["workload"]["dtype_a"] == "float32"
    assert (job["seed"], job["max_trials"], job["eta_s"], job["error"]) == (7, 5, None, None)
    assert job["trials"] == {"done": 0, "ok": 0, "failed_by": {}}
    assert client.get(answer.headers["location"]).json() == job


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workload": {**GEMM, "dtype": "float17"}}, "workload.dtype"),
        ({"workload": {**GEMM, "m": 0}}, "workload.m"),
        ({"workload": {**GEMM, "m": -1}}, "workload.m"),
        ({"workload": {**GEMM, "m": 1.5}}, "workload.m"),
        ({"workload": {**GEMM, "trans": True}}, "workload.trans"),
        ({"workload": {**GEMM, "dtype": "bf16"}}, "workload.dtype_a"),
        ({"workload": {**GEMM, "m": 2**31 - 1, "n": 2**31 - 1, "k": 2**31 - 1}}, "workload.m"),
        ({"workload": {**GEMM, "m": 2**20, "n": 2**20}}, "workload.m"),
        ({"workload": "gemm"}, "workload"),
        ({"workload": {"op": "conv"}}, "workload.op"),
        ({"workload": {"op": "attention", "heads": 2, "seq": 4, "head_dim": 8, "dtype": "fp32"}}, "workload.op"),
        ({"tasks": [{"workload": GEMM}, {"workload": {**GEMM, "k": 0}}], "workload": None}, "tasks"),
        ({"max_trials": 0}, "max_trials"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"preset": "hasty"}, "preset"),
        ({"seed": -1}, "seed"),
        ({"colour": "red"}, "colour"),
        ({"target": "nonsense"}, "target.kind"),
        ({"target": ""}, "target.kind"),
        ({"target": "llvm -num-cores=2"}, "target.kind"),
        ({"target": {"kind": "cpu", "num-cores": 64}}, "target.cores"),
        ({"target": {"kind": "cpu", "arch": "skylake"}}, "target.arch"),
        ({"target": "cuda"}, "target.kind"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_field_named(
    steady: TestClient, change: dict[str, object], field: str
) -> None:
    answer = submit(steady, {"workload": GEMM, **change})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["field"]) == ("invalid-field", field)
    assert steady.get("/v1/jobs").json()["items"] == []


def test_the_second_task_is_named_by_its_place(steady: TestClient) -> None:
    answer = submit(steady, {"tasks": [{"workload": GEMM}, {"workload": {**GEMM, "k": 0}}]})
    assert answer.json()["field"] == "tasks.1.workload.k"
    unsupported = submit(steady, {"tasks": [{"workload": GEMM}, {"workload": {**GEMM, "dtype": "bf16"}}]})
    assert unsupported.json()["errors"][0] == {
        "field": "tasks.1.workload.dtype_a",
        "message": "no sketch for bfloat16 on cpu",
        "allowed": ["float32"],
    }


def test_heads_that_do_not_divide_are_told_with_both_numbers(steady: TestClient) -> None:
    for heads_q, heads_kv in ((3, 2), (33, 2), (7, 2), (4, 0), (2, 4)):
        shape = {"op": "attention", "heads_q": heads_q, "heads_kv": heads_kv, "seq": 4, "head_dim": 8, "dtype": "fp32"}
        answer = submit(steady, {"workload": shape})
        assert answer.status_code == 422
        assert answer.json()["field"] == "workload.heads_kv"


def test_a_target_nobody_has_lists_those_that_are_known(steady: TestClient) -> None:
    problem = submit(steady, {"workload": GEMM, "target": {"kind": "cuda"}}).json()
    assert problem["field"] == "target.kind"
    assert problem["errors"][0]["allowed"] == ["cpu znver3 (EPYC 7763, 2 cores)"]


def test_a_cluster_may_take_jobs_for_devices_that_join_later(store: SqlStore, clock: FakeClock) -> None:
    with new_client(store, clock, accept_unknown_targets=True) as client:
        assert submit(client, {"workload": GEMM, "target": "cuda"}).status_code == 201


def test_before_any_runner_reports_the_hosts_own_target_decides(bare_store: SqlStore, clock: FakeClock) -> None:
    with new_client(bare_store, clock, host_targets=(TARGET,)) as client:
        assert submit(client, {"workload": GEMM}).status_code == 201
        assert submit(client, {"workload": {**GEMM, "dtype": "fp16"}}).json()["field"] == "workload.dtype_a"
    with new_client(bare_store, clock) as client:
        problem = submit(client, {"workload": GEMM}).json()
        assert (problem["field"], problem["errors"][0]["allowed"]) == ("target", [])


def test_one_key_makes_one_job_however_often_it_is_sent(client: TestClient) -> None:
    body = {"workload": GEMM, "max_trials": 3}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: submit(client, body, **{"Idempotency-Key": "k-1"}), range(10)))
    assert {a.status_code for a in answers} <= {200, 201}
    assert [a.status_code for a in answers].count(201) == 1
    assert len({a.json()["id"] for a in answers}) == 1
    assert len(client.get("/v1/jobs").json()["items"]) == 1
    other = submit(client, {"workload": GEMM, "max_trials": 4}, **{"Idempotency-Key": "k-1"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    without = [submit(client, body).json()["id"] for _ in range(2)]
    assert len(set(without)) == 2


def test_a_key_must_be_printable_and_short(steady: TestClient) -> None:
    for key in ("", "a b", "x" * 201):
        answer = submit(steady, {"workload": GEMM}, **{"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["field"].lower()) == (422, "idempotency-key")


def test_pages_hold_every_job_once_newest_first(client: TestClient, clock: FakeClock) -> None:
    made = []
    for number in range(7):
        clock.at += 1
        made.append(submit(client, {"workload": GEMM, "name": str(number)}).json()["id"])
    seen: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"/v1/jobs?limit=3{cursor}").json()
        seen += [job["id"] for job in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == made[::-1]
    client.post(f"/v1/jobs/{made[0]}/cancel")
    assert [j["id"] for j in client.get("/v1/jobs?state=cancelled").json()["items"]] == [made[0]]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("limit=0", 422, "limit"),
        ("limit=501", 422, "limit"),
        ("limit=x", 422, "limit"),
        ("state=done", 422, "state"),
        ("stat=queued", 422, "stat"),
        ("state=queued&state=failed", 422, "state"),
        ("cursor=zzz", 400, None),
    ],
)
def test_list_parameters_are_checked(steady: TestClient, query: str, status: int, field: str | None) -> None:
    answer = steady.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json().get("field")) == (status, field)


def test_steering_follows_the_transition_table(client: TestClient, store: SqlStore) -> None:
    job = submit(client, {"workload": GEMM}).json()["id"]
    assert client.post(f"/v1/jobs/{job}/pause").json()["state"] == "paused"
    assert client.post(f"/v1/jobs/{job}/resume").json()["state"] == "queued"
    assert client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
    again = client.post(f"/v1/jobs/{job}/cancel")
    assert (again.status_code, again.json()["state"], again.json()["stop_reason"]) == (200, "cancelled", "cancelled")
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 409
    lease = claimed(store, job_spec())
    finish(store, lease)
    for action in ("cancel", "pause", "resume"):
        answer = client.post(f"/v1/jobs/{lease.job_id}/{action}")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert client.get(f"/v1/jobs/{lease.job_id}").json()["state"] == "completed"


def test_a_job_tells_what_it_found(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(max_trials=8))
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", ok(0.002))
    measure(store, lease, [0.003, None, 0.0015])
    job = client.get(f"/v1/jobs/{lease.job_id}").json()
    assert job["trials"] == {"done": 3, "ok": 2, "failed_by": {"BUILD_ERROR": 1}}
    (task,) = job["tasks"]
    assert task["baseline"] == {"name": "torch.matmul", "latency_s": 0.002}
    assert task["best"]["latency_s"] == 0.0015
    # Before the final nothing is paired, so no speedup is claimed.
    assert (task["best"]["promoted"], task["best"]["speedup_vs_baseline"]) == (False, None)
    finish(store, lease, 0.001)
    (task,) = client.get(f"/v1/jobs/{lease.job_id}").json()["tasks"]
    assert task["best"]["speedup_vs_baseline"] == pytest.approx(2.0)
    assert task["best"]["tflops"] == pytest.approx(2 * 4 * 8 * 16 / 0.001 / 1e12)
    assert (task["best"]["roofline_fraction"], task["best"]["served"]) == (0.8, {"kind": "tilewright"})


def test_a_failed_job_says_why(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(max_trials=2))
    measure(store, lease, [None, None])
    store.finish_job(lease, JobState.FAILED, StopReason.NO_VALID_CANDIDATE, "2 BUILD_ERROR; first: no compiler")
    job = client.get(f"/v1/jobs/{lease.job_id}").json()
    assert (job["state"], job["stop_reason"]) == ("failed", "no_valid_candidate")
    assert "no compiler" in job["error"]["message"]
    assert job["tasks"][0]["best"] is None


@pytest.mark.parametrize(
    ("raw", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "not-json"),
        (b"\xff\xfe{}", "application/json", 400, "not-json"),
        (b"\xef\xbb\xbf{}", "application/json", 400, "not-json"),
        (b'{"seed": NaN}', "application/json", 400, "not-json"),
        (b'{"max_seconds": Infinity}', "application/json", 400, "not-json"),
        (b'{"max_seconds": 1e999}', "application/json", 400, "not-json"),
        (b'{"seed": 99999999999999999999}', "application/json", 400, "not-json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", 400, "not-json"),
        (b'{"seed": 1, "seed": 2}', "application/json", 400, "not-json"),
        (b"[" * 100_000, "application/json", 400, "too-deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "application/json", 400, "too-deep"),
        (b'{"name": "\\ud800"}', "application/json", 422, "invalid-field"),
        (b'{"name": "a\\u0000b"}', "application/json", 422, "invalid-field"),
        (b"null", "application/json", 422, "invalid-field"),
        (b"[]", "application/json", 422, "invalid-field"),
        (b"", "application/json", 400, "not-json"),
        (b"{}", "text/plain", 415, "not-json-type"),
        (b"{}", "", 415, "not-json-type"),
        (b"{}", "application/json; charset=utf-16", 415, "not-json-type"),
        (b"{}", "application/x-www-form-urlencoded", 415, "not-json-type"),
    ],
)
def test_a_body_that_is_not_plain_json_is_refused(
    steady: TestClient, raw: bytes, kind: str, status: int, code: str
) -> None:
    answer = steady.post("/v1/jobs", content=raw, headers={"Content-Type": kind} if kind else {})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    json.loads(answer.content, parse_constant=pytest.fail)


def test_a_body_over_the_limit_is_413_announced_or_not(store: SqlStore, clock: FakeClock) -> None:
    with new_client(store, clock, max_body_bytes=1000) as client:
        big = json.dumps({"name": "x" * 1000}).encode()
        headers = {"Content-Type": "application/json"}
        announced = client.post("/v1/jobs", content=big, headers=headers)
        chunked = client.post("/v1/jobs", content=iter([big[:500], big[500:]]), headers=headers)
        for answer in (announced, chunked):
            assert (answer.status_code, answer.json()["limit_bytes"]) == (413, 1000)


def test_tasks_that_no_single_kind_of_device_can_do_are_told_apart(
    bare_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is bound to one kind of device: a half of it on each could never end."""
    monkeypatch.setattr(registry, "all_sketches", lambda: {**SKETCHES, "fast": HalfPrecision()})
    with new_client(bare_store, clock, host_targets=(TARGET, GPU)) as client:
        half = {**GEMM, "dtype": "fp16"}
        assert submit(client, {"workload": half}).status_code == 201
        answer = submit(client, {"tasks": [{"workload": GEMM}, {"workload": half}]})
        assert (answer.status_code, answer.json()["field"]) == (422, "tasks.1.workload")
        assert answer.json()["errors"][0]["allowed"] == ["cuda"]


@pytest.mark.parametrize(
    ("workload", "status", "field"),
    [
        (GEMM, 201, None),
        ({"op": "attention", "heads": 2, "seq": 64, "head_dim": 64, "dtype": "fp32"}, 201, None),
        ({**GEMM, "scales": "tensor", "dtype": "fp8"}, 422, "workload."),
        (
            {"op": "attention", "heads": 2, "seq": 64, "head_dim": 64, "dtype": "fp32", "pass": "backward"},
            422,
            "workload.pass",
        ),
        (
            {"op": "attention", "heads": 2, "seq": 64, "head_dim": 64, "dtype": "fp32", "kv_layout": "paged"},
            422,
            "workload.kv_layout",
        ),
    ],
)
def test_the_real_sketches_decide_what_a_cpu_can_do(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, workload: object, status: int, field: str | None
) -> None:
    monkeypatch.setattr(registry, "all_sketches", all_sketches)
    answer = submit(client, {"workload": workload})
    assert answer.status_code == status, answer.text
    assert field is None or answer.json()["field"].startswith(field)
