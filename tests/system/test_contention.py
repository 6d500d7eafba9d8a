"""Many writers and an impatient reader on one database, at the length that users would see (cases O24)."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.running_service import RunningService

ROOT = Path(__file__).resolve().parents[2]
JOBS, WORKERS, TRIALS = 8, 16, 120


def start_writer(url: str, name: str) -> "subprocess.Popen[str]":
    """A process with a store of its own that claims jobs, reserves and commits as a runner does."""
    paths = [str(ROOT / "tests/support"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/db/store_worker.py"), url, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_sixteen_writers_and_a_client_that_polls_everything(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """No lock error reaches the client, no row is lost: rows = the sum of the budgets."""
    database = request.getfixturevalue("postgres_url") if kind == "postgresql" else None
    with RunningService(tmp_path, None, "--no-runner", database=database) as service:
        workload = {"op": "gemm", "n": 64, "k": 64, "dtype": "float32"}
        jobs = [service.submit(workload={**workload, "m": i + 1}, max_trials=TRIALS) for i in range(JOBS)]
        writers = [start_writer(service.database, f"writer-{i}") for i in range(WORKERS)]
        polls = 0
        end = time.monotonic() + 120.0
        with httpx.Client(base_url=service.client.url, timeout=30.0) as http:
            while time.monotonic() < end and any(w.poll() is None for w in writers):
                for job in jobs:
                    answer = http.get(f"/v1/jobs/{job}/trials", params={"limit": 500})
                    assert answer.status_code == 200, answer.text
                    assert len(answer.json()["items"]) <= TRIALS
                    polls += 1
                time.sleep(0.1)
        acknowledged: list[str] = []
        for writer in writers:
            out, err = writer.communicate(timeout=120)
            assert writer.returncode == 0, err
            acknowledged += out.splitlines()
        assert polls >= JOBS
        assert len(acknowledged) == len(set(acknowledged)) == JOBS * TRIALS
        for job in jobs:
            found = service.client.job(job)
            assert (found["state"], found["trials"]["done"]) == ("completed", TRIALS)
            assert sorted(t["number"] for t in service.trials(job)) == list(range(TRIALS))
        assert "locked" not in service.log.read_text()
