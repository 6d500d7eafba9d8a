"""Jobs whose candidates behave as a script says, through every real process: HTTP, runner, Ray, children, SQLite."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.running_service import RunningService
from tilewright.client import ApiError

GEMM = {"op": "gemm", "m": 128, "n": 128, "k": 128, "dtype": "float32"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Latency is a hash of the candidate; the vendor's kernel takes 1.5 ms."""
    script = {"default": {"latency_s": "hash"}, "baseline": {"latency_s": 0.0015}}
    with RunningService(tmp_path_factory.mktemp("hash"), script) as running:
        yield running


def proposals(service: RunningService, job: str) -> list[tuple[str, str]]:
    ordered = sorted(service.trials(job), key=lambda t: t["number"])
    return [(t["sketch"], json.dumps(t["knobs"], sort_keys=True)) for t in ordered]


def test_one_seed_proposes_one_list_and_ends_with_one_winner(service: RunningService) -> None:
    first, second = (service.submit(seed=7, max_trials=64) for _ in range(2))
    other = service.submit(seed=8, max_trials=64)
    jobs = [service.finished(job) for job in (first, second, other)]
    assert [j["seed"] for j in jobs] == [7, 7, 8]
    assert proposals(service, first) == proposals(service, second)
    assert proposals(service, first) != proposals(service, other)
    assert jobs[0]["tasks"][0]["best"]["latency_s"] == jobs[1]["tasks"][0]["best"]["latency_s"]


def test_the_budget_is_met_exactly_and_no_candidate_is_measured_twice(service: RunningService) -> None:
    job = service.finished(service.submit(workload=GEMM, max_trials=150))
    trials = service.trials(job["id"])
    assert job["state"] == "completed"
    assert len(trials) == 150 == job["trials"]["done"]
    assert sorted(t["number"] for t in trials) == list(range(150))
    assert len(set(proposals(service, job["id"]))) == 150


def test_a_budget_smaller_than_a_batch_is_shared_between_the_tasks(service: RunningService) -> None:
    tasks = [{"workload": {**GEMM, "m": 32 * (i + 1)}} for i in range(4)]
    job = service.finished(service.submit(tasks=tasks, max_trials=6))
    assert (job["state"], job["trials"]["done"]) == ("completed", 6)
    assert all(1 <= t["trials"] <= 3 for t in job["tasks"])
    assert all(t["best"]["promoted"] for t in job["tasks"])


@pytest.mark.slow
def test_four_builders_propose_what_one_proposes(service: RunningService, tmp_path: Path) -> None:
    """Results are told to the search in the order of the trials, so their order of arrival does not count (O13)."""
    script = json.loads((service.folder / "script.json").read_text())
    one = service.submit(seed=7, max_trials=64)
    service.finished(one)
    with RunningService(tmp_path, script, "--cores", "4") as other:
        four = other.submit(seed=7, max_trials=64)
        other.finished(four)
        assert proposals(other, four) == proposals(service, one)


def test_a_tiny_space_ends_by_itself(service: RunningService) -> None:
    tiny = {"op": "gemm", "m": 1, "n": 1, "k": 1, "dtype": "float32"}
    job = service.finished(service.submit(workload=tiny, max_trials=64))
    assert (job["state"], job["stop_reason"]) == ("completed", "space_exhausted")
    seen = proposals(service, job["id"])
    assert len(seen) == len(set(seen)) == job["trials"]["done"] < 64


def test_the_same_key_makes_one_job_and_two_jobs_of_one_shape_lose_nothing(service: RunningService) -> None:
    body = {"workload": GEMM, "target": "cpu", "max_trials": 16}
    with ThreadPoolExecutor(10) as pool:
        ids = set(pool.map(lambda _: _submit_with_key(service, body, "one-key"), range(10)))
    assert len(ids) == 1
    jobs = [service.finished(service.submit(workload=GEMM, max_trials=16, seed=s)) for s in (1, 2)]
    assert [j["trials"]["done"] for j in jobs] == [16, 16]
    best = service.client.best(GEMM, target="cpu")["latency_s"]
    assert best <= min(j["tasks"][0]["best"]["latency_s"] for j in jobs)


def _submit_with_key(service: RunningService, body: dict[str, object], key: str) -> str:
    from tilewright.client import Client

    with Client(service.client.url) as client:
        return str(client.submit(body, key)["id"])


def test_cancel_stops_and_keeps_what_was_measured(service: RunningService) -> None:
    job = service.submit(max_trials=100_000)
    service.wait_trials(job, 5)
    cancelled = service.client.act(job, "cancel")
    assert cancelled["state"] == "cancelled"
    assert service.client.act(job, "cancel")["state"] == "cancelled"
    done = service.client.job(job)["trials"]["done"]
    follower = service.finished(service.submit(max_trials=8))  # the device is free again
    assert follower["state"] == "completed"
    assert service.client.job(job)["trials"]["done"] == done >= 5
    with pytest.raises(ApiError) as refused:
        service.client.act(follower["id"], "cancel")
    assert refused.value.status == 409
    assert service.client.job(follower["id"])["state"] == "completed"


def test_pause_and_resume_end_with_exactly_the_budget(service: RunningService) -> None:
    job = service.submit(max_trials=120)
    service.wait_trials(job, 10)
    service.client.act(job, "pause")
    service.wait_state(job, ("paused",))
    service.client.act(job, "resume")
    ended = service.finished(job)
    assert (ended["state"], ended["trials"]["done"]) == ("completed", 120)
    assert len(set(proposals(service, job))) == 120


def test_events_carry_every_trial_in_order_without_gaps(service: RunningService) -> None:
    job = service.submit(max_trials=20)
    events = list(service.client.events(job))
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert sum(e.kind == "trial" for e in events) == 20
    again = list(service.client.events(job, after=events[4].sequence))
    assert [e.sequence for e in again] == [e.sequence for e in events[5:]]


def test_a_target_nobody_has_is_refused_and_blocks_nobody(service: RunningService) -> None:
    with pytest.raises(ApiError) as refused:
        service.client.submit({"workload": GEMM, "target": "cuda"})
    assert refused.value.status == 422
    assert service.finished(service.submit(max_trials=4))["state"] == "completed"


def test_a_record_of_one_target_answers_for_no_other(service: RunningService) -> None:
    shape = {"op": "gemm", "m": 128, "n": 128, "k": 96, "dtype": "float32"}
    service.finished(service.submit(workload=shape, max_trials=8))
    assert service.client.best(shape, target="cpu")["exact"] is True
    for target in ({"target": "cuda", "arch": "sm_90"}, {"target": "cpu", "arch": "some-other-cpu"}):
        with pytest.raises(ApiError) as missing:
            service.client.best(shape, **target)
        assert missing.value.status == 404
    with pytest.raises(ApiError) as untuned:
        service.client.best({"op": "gemm", "m": 17, "n": 512, "k": 512, "dtype": "float32"}, target="cpu")
    assert (untuned.value.status, untuned.value.code) == (404, "untuned")


def test_a_bad_script_ends_the_server_with_the_field(tmp_path: Path) -> None:
    service = RunningService(tmp_path, {"trials": [{"latency_s": "fast"}]})
    with pytest.raises(AssertionError, match=r"trials\.0\.latency_s"):
        service.start()
