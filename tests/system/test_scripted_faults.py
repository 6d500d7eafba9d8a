"""Candidates that fail, crash, hang or lie, and processes that are killed: nothing is lost, nothing wrong is served."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.running_service import RunningService
from tilewright.client import ApiError

GEMM = {"op": "gemm", "m": 128, "n": 128, "k": 128, "dtype": "float32"}


def outcomes(service: RunningService, job: str) -> list[str]:
    return [t["outcome"] for t in sorted(service.trials(job), key=lambda t: t["number"])]


def test_each_misbehaviour_has_its_outcome_and_the_rest_is_measured(tmp_path: Path) -> None:
    script = {
        "default": {"latency_s": "hash"},
        "trials": [
            {"latency_s": 0.001},
            {"latency_s": "NaN"},
            {"latency_s": "Infinity"},
            {"latency_s": "-Infinity"},
            {"latency_s": 0.0},
            {"outcome": "BUILD_ERROR", "message": "ld: cannot find -lfast"},
            {"do": "crash"},
            {"do": "write_nothing"},
            {"do": "write_half"},
            {"do": "accumulate"},
            {"do": "allocate"},
            {"latency_s": 0.002},
        ],
        "baseline": {"latency_s": 0.004},
    }
    with RunningService(tmp_path, script) as service:
        job = service.finished(service.submit(workload=GEMM, max_trials=20), 180)
        seen = outcomes(service, job["id"])
        assert job["state"] == "completed"
        assert len(seen) == 20
        assert seen[0] == seen[11] == "OK"
        assert seen[5] == "BUILD_ERROR"
        assert seen[6] == "RUN_ERROR"
        assert seen[7:10] == ["WRONG_ANSWER"] * 3
        assert seen[10] == "OUT_OF_MEMORY"
        assert "OK" not in seen[1:5]
        assert set(seen[12:]) == {"OK"}
        trials = {t["number"]: t for t in service.trials(job["id"])}
        assert [trials[n]["latency_s"] for n in range(1, 11)] == [None] * 10
        assert "cannot find -lfast" in trials[5]["error"]
        best = service.client.best(GEMM, target="cpu")
        assert best["latency_s"] == pytest.approx(0.001)
        assert best["speedup_vs_baseline"] == pytest.approx(4.0)
        assert best["served"]["kind"] == "tilewright"
        raw = service.client._send("GET", f"/v1/jobs/{job['id']}/trials", params={"limit": "100"}).text
        assert json.loads(raw, parse_constant=pytest.fail)


def test_when_nothing_could_be_measured_the_job_fails_and_says_why(tmp_path: Path) -> None:
    script = {"default": {"outcome": "BUILD_ERROR", "message": "cc: not found"}}
    with RunningService(tmp_path, script) as service:
        job = service.finished(service.submit(workload=GEMM, max_trials=16))
        assert (job["state"], job["stop_reason"]) == ("failed", "no_valid_candidate")
        assert "cc: not found" in job["error"]["message"]
        assert "16 BUILD_ERROR" in job["error"]["message"]
        assert job["trials"] == {"done": 16, "ok": 0, "failed_by": {"BUILD_ERROR": 16}}
        with pytest.raises(ApiError) as none:
            service.client.best(GEMM, target="cpu")
        assert none.value.status == 404


def test_slower_than_the_vendor_is_said_and_the_vendor_is_served(tmp_path: Path) -> None:
    script = {"default": {"latency_s": 0.004}, "baseline": {"latency_s": 0.002}}
    with RunningService(tmp_path, script) as service:
        service.finished(service.submit(workload=GEMM, max_trials=12))
        best = service.client.best(GEMM, target="cpu")
        assert best["served"] == {"kind": "vendor"}
        assert best["speedup_vs_baseline"] == pytest.approx(0.5)
        assert best["baseline"]["latency_s"] == pytest.approx(0.002)


def test_a_hang_is_ended_and_the_next_candidate_measured(tmp_path: Path) -> None:
    script = {"default": {"latency_s": "hash"}, "trials": [{"latency_s": 0.001}, {"do": "hang"}]}
    with RunningService(tmp_path, script) as service:
        job = service.finished(service.submit(workload=GEMM, max_trials=6), 180)
        assert outcomes(service, job["id"]) == ["OK", "RUN_TIMEOUT", "OK", "OK", "OK", "OK"]


@pytest.mark.parametrize("victim", ["api.runner", "workers.child_entry", "serve"])
def test_kill_9_in_the_middle_ends_with_exactly_the_budget(tmp_path: Path, victim: str) -> None:
    """The runner, a child that measures or builds, the HTTP process (started again by hand)."""
    script = {"default": {"latency_s": "hash", "do": "sleep", "seconds": 0.03}}
    service = RunningService(tmp_path, script)
    with service:
        job = service.submit(workload=GEMM, max_trials=60)
        service.wait_trials(job, 15)
        before = {(t["number"], t["latency_s"]) for t in service.trials(job)}
        if victim == "serve":
            assert service.process is not None
            family = service.family()
            os.kill(service.process.pid, signal.SIGKILL)
            service.process.wait()
            for process in family:  # they notice by themselves that nobody owns them any more
                process.wait(60)
            service.start()
        else:
            found = service.find(victim)
            assert found
            for process in found:
                process.kill()
        ended = service.finished(job, 180)
        after = service.trials(job)
        assert (ended["state"], ended["trials"]["done"]) == ("completed", 60)
        assert before <= {(t["number"], t["latency_s"]) for t in after}
        assert sorted(t["number"] for t in after) == list(range(60))
        assert all(t["outcome"] == "OK" for t in after)
