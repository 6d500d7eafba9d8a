"""The dashboard's pages without a browser: what they show, and that nothing a user wrote is markup."""

import re
from pathlib import Path

import pytest
from api_world import claimed_job, finish, measure
from fastapi.testclient import TestClient
from store_nouns import claimed, gemm, job_spec, ok

from api.dashboard import assets, words
from db.store import SqlStore
from search_space.workload import parse_workload
from tuner.job import JobState, StopReason

HTML = {"Accept": "text/html"}


def test_the_list_is_helpful_when_empty(client: TestClient) -> None:
    page = client.get("/").text
    assert "Nothing tuned yet" in page
    assert "EPYC 7763" in page
    assert "No job is paused" in client.get("/?state=paused").text


def test_jobs_are_listed_with_state_and_progress(client: TestClient, store: SqlStore) -> None:
    lease = claimed_job(store, [0.003, None])
    page = client.get("/").text
    assert f'href="/jobs/{lease.job_id}"' in page
    assert "GEMM 4 × 8 × 16 fp32" in page
    assert "2 / 6" in page
    assert '<span class="state running">' in page
    fragment = client.get("/fragments/jobs").text
    assert "<html" not in fragment
    assert lease.job_id in fragment


def test_the_job_page_shows_tasks_failures_and_trials(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(), gemm(m=5), name="two", max_trials=20))
    store.set_baseline(lease, lease.tasks[0].task_id, "torch.matmul", ok(0.002))
    measure(store, lease, [0.003, None, 0.0015])
    page = client.get(f"/jobs/{lease.job_id}").text
    assert "build failed" in page
    assert "1.50 ms" in page
    assert "≈ 1.33×" in page  # 2 ms / 1.5 ms, marked as not paired yet
    assert page.index('data-trial="3"') < page.index('data-trial="1"')  # newest first
    assert "GEMM 5 × 8 × 16 fp32" in page
    finish(store, lease)
    page = client.get(f"/jobs/{lease.job_id}").text
    assert "all trials used" in page
    assert re.search(r'class="gain">2\.00×', page)
    assert "data-action" not in page


@pytest.mark.parametrize(
    ("action", "shown"),
    [("pause", "Paused."), ("cancel", "Cancelled."), (None, "A runner will take it")],
)
def test_each_state_is_explained(client: TestClient, store: SqlStore, action: str | None, shown: str) -> None:
    job, _ = store.create_job(job_spec(), None, 0.0)
    if action:
        client.post(f"/v1/jobs/{job.id}/{action}")
    assert shown in client.get(f"/jobs/{job.id}").text


def test_a_failed_job_shows_the_reason(client: TestClient, store: SqlStore) -> None:
    lease = claimed_job(store, [None, None])
    store.finish_job(lease, JobState.FAILED, StopReason.NO_VALID_CANDIDATE, "2 BUILD_ERROR; first: no <compiler>")
    page = client.get(f"/jobs/{lease.job_id}").text
    assert "first: no &lt;compiler&gt;" in page
    assert "no valid candidate" in page


def test_what_users_write_is_never_markup(client: TestClient, store: SqlStore) -> None:
    evil = "<script>alert(1)</script>\"'"
    lease = claimed(store, job_spec(name=evil))
    measure(store, lease, [0.001])
    for path in ("/", f"/jobs/{lease.job_id}", f"/fragments/jobs/{lease.job_id}"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("path", ["/", "/login", "/jobs/job_none"])
def test_pages_hold_no_inline_script_and_nothing_from_elsewhere(steady: TestClient, path: str) -> None:
    page = steady.get(path, headers=HTML).text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", page)
    assert not re.search(r"(src|href)=\"(?!/)", page)


def test_trials_are_filtered_and_paged(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm(), gemm(m=5), max_trials=100))
    measure(store, lease, [0.003] * 30, task=0)
    measure(store, lease, [None], task=1)
    base = f"/fragments/jobs/{lease.job_id}/trials"
    first = client.get(base).text
    assert first.count("data-trial") == 25
    cursor = re.search(r'data-cursor="([^"]+)"', first)
    assert cursor is not None
    rest = client.get(base, params={"cursor": cursor[1]}).text
    assert rest.count("data-trial") == 6
    assert client.get(base, params={"task": "1", "outcome": "BUILD_ERROR"}).text.count("data-trial") == 1
    assert "No trial matches" in client.get(base, params={"outcome": "WRONG_ANSWER"}).text
    assert client.get(base, params={"task": "2"}).status_code == 404


def test_a_browser_gets_pages_for_faults(steady: TestClient) -> None:
    for path in ("/jobs/job_none", "/nothing", "/jobs/a%20b"):
        answer = steady.get(path, headers=HTML)
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.status_code in (404, 422)
        assert "Back to the jobs" in answer.text
    assert steady.get("/nothing").headers["content-type"] == "application/problem+json"


def test_the_chart_library_is_the_installed_packages_own(steady: TestClient) -> None:
    url = assets.url("plotly")
    packed = steady.get(url)
    assert packed.headers["content-encoding"] == "gzip"
    assert "immutable" in packed.headers["cache-control"]
    assert packed.content == assets.chart_library().read_bytes()
    plain = steady.get(url, headers={"Accept-Encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content) == (False, packed.content)


@pytest.mark.parametrize("name", ["nope.js", "..%2fpages.py", "%2e%2e/pages.py", "dashboard.js"])
def test_only_the_pages_own_files_are_served(steady: TestClient, name: str) -> None:
    assert steady.get(f"/static/{name}").status_code == 404


def test_every_file_of_the_folder_is_served_under_its_hash(steady: TestClient) -> None:
    for name, path in assets.files().items():
        assert steady.get(f"/static/{name}").status_code == 200
        assert isinstance(path, Path)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.43e-05, "14.3 µs"),
        (0.0015, "1.50 ms"),
        (2.0, "2.00 s"),
        (9.99e-7, "999 ns"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_times_have_three_digits_and_a_unit(value: float | None, shown: str) -> None:
    assert words.seconds(value) == shown


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (
            {"op": "gemm", "m": 16, "n": 6144, "k": 4096, "dtype": "bf16", "trans_b": True},
            "GEMM 16 × 6144 × 4096 bf16 Bᵀ",
        ),
        ({"op": "gemm", "m": 1, "n": 2, "k": 3, "dtype": "fp8", "batch": 4}, "GEMM 4 × 1 × 2 × 3 fp8/fp8/bf16"),
        (
            {
                "op": "attention",
                "heads_q": 32,
                "heads_kv": 8,
                "seq": 2048,
                "head_dim": 128,
                "dtype": "bf16",
                "causal": True,
            },
            "Attention 32/8 heads 2048 tokens d128 bf16 causal",
        ),
        (
            {
                "op": "attention",
                "batch": 2,
                "heads": 4,
                "seq_q": 1,
                "seq_kv": 99,
                "head_dim": 64,
                "dtype": "fp32",
                "softcap": 30,
            },
            "Attention batch 2, 4 heads 1→99 tokens d64 fp32 softcap 30.0",
        ),
    ],
)
def test_workloads_are_told_apart_in_one_line(fields: dict[str, object], shown: str) -> None:
    assert words.workload(parse_workload(fields).to_json()) == shown
