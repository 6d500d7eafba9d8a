"""A real job on this CPU through `tilewright serve`, and everything a user does with what it found."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_service import RunningService, run_tilewright

GEMM = {"op": "gemm", "m": 6, "n": 33, "k": 20, "dtype": "float32", "trans_b": True}
ATTENTION = {"op": "attention", "heads_q": 2, "heads_kv": 1, "seq_q": 5, "seq_kv": 9, "head_dim": 16, "causal": True}
BEST = ["gemm", "--m", "6", "--n", "33", "--k", "20", "--trans-b"]


@dataclass(frozen=True)
class Tuned:
    service: RunningService
    job: dict[str, Any]

    @property
    def schedules(self) -> list[str]:
        return [task["schedule_id"] for task in self.job["tasks"]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    with RunningService(tmp_path_factory.mktemp("real")) as service:
        tasks = [{"workload": GEMM}, {"workload": {**ATTENTION, "dtype": "float32"}}]
        job = service.submit(tasks=tasks, max_trials=6, preset="quick", name="two tiny tasks")
        yield Tuned(service, service.finished(job, 280.0))


def answer(tuned: Tuned, *arguments: str) -> Any:
    """The one JSON document that a command prints, from the service's database by a process of its own."""
    done = run_tilewright(tuned.service, *arguments, "--db", tuned.service.database, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_job_spends_its_budget_and_every_task_has_a_checked_winner(tuned: Tuned) -> None:
    job = tuned.job
    assert (job["state"], job["stop_reason"], job["trials"]["done"]) == ("completed", "trials", 6)
    for task in job["tasks"]:
        assert task["trials"] > 0
        assert task["best"]["latency_s"] > 0
        assert task["best"]["speedup_vs_baseline"] > 0


def test_best_show_and_jobs_answer_from_the_database(tuned: Tuned) -> None:
    best = answer(tuned, "best", *BEST)
    assert (best["exact"], best["job_id"]) == (True, tuned.job["id"])
    assert best["baseline"]["latency_s"] > 0
    shown = answer(tuned, "show", best["schedule"]["id"])
    assert "# TIR" in shown["program"]
    assert "# assembly" in shown["program"]
    assert [j["id"] for j in answer(tuned, "jobs")] == [tuned.job["id"]]
    missing = run_tilewright(tuned.service, "best", "gemm", "--m", "7", "--n", "7", "--k", "7", "--json")
    assert (missing.returncode, missing.stdout) == (1, "")


def test_a_trial_is_rebuilt_checked_and_timed_again(tuned: Tuned) -> None:
    trial = tuned.service.trials(tuned.job["id"])[0]
    replayed = answer(tuned, "replay", str(trial["id"]))
    assert replayed["now"]["outcome"] == "OK"
    assert replayed["now"]["latency_s"] > 0
    assert replayed["candidate"]["knobs"] == trial["knobs"]


FRESH = """
import sys
import torch, tilewright, tilewright.torch as tw
folder, job = sys.argv[1:]
assert tw.use(folder) == 2
torch.manual_seed(0)
x, w = torch.randn(6, 20), torch.randn(33, 20)
torch.testing.assert_close(tw.linear(x, w).double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-5)
q, k, v = torch.randn(1, 2, 5, 16), torch.randn(1, 1, 9, 16), torch.randn(1, 1, 9, 16)
scores = (q.double() @ k.double().mT) / 4
hidden = torch.ones(5, 9, dtype=torch.bool).triu(5)
wanted = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.double()
torch.testing.assert_close(tw.attention(q, k, v, causal=True).double(), wanted, rtol=1e-5, atol=1e-5)
assert tw.counts().missed == 0 and tw.counts().tuned + tw.counts().vendor == 2
assert torch.equal(tw.linear(x[:5], w), torch.nn.functional.linear(x[:5], w)) and tw.counts().missed == 1
kernel = tilewright.load(next(p for p in __import__("pathlib").Path(folder).glob("gemm-*")))
torch.testing.assert_close(kernel(x, w).double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-5)
assert not {"tvm", "ray", "sqlalchemy", "fastapi"} & set(sys.modules)
"""


def test_the_winners_run_in_a_process_of_their_own(tuned: Tuned, tmp_path: Path) -> None:
    written = answer(tuned, "export", "--job", tuned.job["id"], "--out", str(tmp_path / "winners"))["written"]
    assert len(written) == 3  # two schedules and the index
    command = [sys.executable, "-c", FRESH, str(tmp_path / "winners"), tuned.job["id"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_artifact_is_refused_with_what_to_do(tuned: Tuned, tmp_path: Path) -> None:
    answer(tuned, "export", tuned.schedules[0], "--out", str(tmp_path))
    file = next(tmp_path.glob("*/kernel.tilewright"))
    file.write_bytes(file.read_bytes()[:100])
    code = "import sys, tilewright; tilewright.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert "damaged artifact" in done.stderr
    assert "re-export it with `tilewright export`" in done.stderr
