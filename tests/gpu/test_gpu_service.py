"""Real jobs on this GPU through `tilewright serve`: searched, measured, stored, looked up, and served to torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tilewright
from tests.support.running_service import RunningService
from tilewright.client import ApiError
from workers.gpu_host import VISIBLE, Gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]

GEMM = {"op": "gemm", "m": 16, "n": 1024, "k": 2048, "dtype": "bfloat16", "trans_b": True}
ATTENTION = {"op": "attention", "heads_q": 8, "heads_kv": 2, "seq_q": 700, "seq_kv": 900, "head_dim": 128}
TASKS = [{"workload": GEMM}, {"workload": {**ATTENTION, "causal": True, "dtype": "bfloat16"}}]


@dataclass(frozen=True)
class Tuned:
    service: RunningService
    job: dict[str, Any]


@pytest.fixture(scope="module")
def tuned(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    with RunningService(tmp_path_factory.mktemp("gpu")) as service:
        job = service.submit(tasks=TASKS, target="cuda", max_trials=16, name="gpu")
        yield Tuned(service, service.finished(job, 200.0))


def test_both_tasks_have_a_checked_winner_measured_on_the_physical_gpu(tuned: Tuned, gpu: Gpu) -> None:
    job = tuned.job
    assert (job["state"], job["stop_reason"], job["trials"]["done"]) == ("completed", "trials", 16), job["error"]
    for task in job["tasks"]:
        assert task["best"]["latency_s"] > 0
        assert task["best"]["speedup_vs_baseline"] > 0
        assert task["best"]["roofline_fraction"] > 0
    trials = tuned.service.trials(job["id"])
    assert {t["device"] for t in trials if t["outcome"] == "OK"} == {gpu.uuid}


def test_a_lookup_tells_the_gpu_and_the_vendor_it_was_compared_with(tuned: Tuned, gpu: Gpu) -> None:
    for task, vendors in zip(TASKS, ({"cublas"}, {"cudnn", "fa2", "efficient"}), strict=True):
        best = tuned.service.client.best(task["workload"], target="cuda")
        assert best["exact"]
        assert best["baseline"]["name"] in vendors
        environment = best["environment"]
        assert (environment["model"], environment["arch"], environment["driver"]) == (gpu.model, gpu.arch, gpu.driver)
        assert environment["policy"].endswith("/cold")


def test_the_artifact_runs_from_torch_on_fresh_inputs(tuned: Tuned) -> None:
    best = tuned.service.client.best(GEMM, target="cuda")
    kernel = tilewright.load(tuned.service.client.artifact(best["schedule"]["id"]))
    a = torch.randn(GEMM["m"], GEMM["k"], device="cuda", dtype=torch.bfloat16)
    b = torch.randn(GEMM["n"], GEMM["k"], device="cuda", dtype=torch.bfloat16)
    expected = a.double() @ b.double().t()
    error = (kernel(a, b).double() - expected).abs().max() / expected.abs().max()
    assert float(error) < 2.0**-8


def test_without_a_visible_gpu_a_cuda_job_is_refused_and_never_runs_on_the_cpu(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "")
    with RunningService(tmp_path) as service:
        with pytest.raises(ApiError, match="no device of kind cuda"):
            service.submit(tasks=TASKS[:1], target="cuda", max_trials=4)
