"""`make demo`: the main job from start to end, on this machine, through every real part."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from api.defaults import DEFAULT_PORT, default_paths
from tilewright.cli.show import describe_workload, knobs_text, rate, seconds, speedup
from tilewright.cli.watch import watch
from tilewright.client import ApiError, Client, Unreachable

START_LIMIT_S = 180.0

LIMITS: dict[str, object] = {"name": "demo", "max_trials": 112, "max_seconds": 180, "seed": 0}

# Llama-3.1-8B's o_proj at decode with 16 sequences (a PyTorch Linear: B stored [n, k]), BERT-base's first FFN product
# over 128 tokens, and BERT-base's attention at two lengths. Shapes: the models' published configurations.
CPU_JOB: dict[str, object] = {
    **LIMITS,
    "target": "cpu",
    "tasks": [
        {"workload": {"op": "gemm", "m": 16, "n": 4096, "k": 4096, "dtype": "float32", "trans_b": True}},
        {"workload": {"op": "gemm", "m": 128, "n": 3072, "k": 768, "dtype": "float32"}},
        {"workload": {"op": "attention", "heads": 12, "seq": 128, "head_dim": 64, "dtype": "float32"}},
        {"workload": {"op": "attention", "heads": 12, "seq": 512, "head_dim": 64, "dtype": "float32"}},
    ],
}
# In bfloat16, as models run on a GPU: Llama-3.1-8B's fused QKV projection at decode with 16 sequences, its o_proj over
# 2048 tokens of a prompt, BERT-base's first FFN product over 128 tokens, and Llama's attention over that prompt.
LLAMA_HEADS: dict[str, object] = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, "causal": True, "dtype": "bfloat16"}
GPU_JOB: dict[str, object] = {
    **LIMITS,
    "target": "cuda",
    "tasks": [
        {"workload": {"op": "gemm", "m": 16, "n": 6144, "k": 4096, "dtype": "bfloat16", "trans_b": True}},
        {"workload": {"op": "gemm", "m": 2048, "n": 4096, "k": 4096, "dtype": "bfloat16", "trans_b": True}},
        {"workload": {"op": "gemm", "m": 128, "n": 3072, "k": 768, "dtype": "bfloat16", "trans_b": True}},
        {"workload": {"op": "attention", "seq_q": 2048, "seq_kv": 2048, **LLAMA_HEADS}},
    ],
}
ASK_AGAIN = {
    "cpu": "gemm --m 16 --n 4096 --k 4096 --dtype float32 --trans-b --json",
    "cuda": "gemm --m 16 --n 6144 --k 4096 --dtype bfloat16 --trans-b --target cuda --json",
}


def choose_job(targets: Mapping[str, Any]) -> dict[str, object]:
    """The GPU's where a runner has a GPU with a sketch for every task, else the CPU's. `targets`: GET /v1/targets."""
    for item in targets["items"]:
        if item["target"]["kind"] == "cuda" and item["alive"] and {"gemm", "attention"} <= set(item["ops"]):
            return GPU_JOB
    return CPU_JOB


def main() -> int:
    console = Console()
    url, started = ensure_service(console)
    try:
        with Client(url) as client:
            begin = time.monotonic()
            body = choose_job(client.get("/v1/targets"))
            job_id = client.submit(body)["id"]
            console.print(f"Submitted {job_id} to {url}: {len(body['tasks'])} tasks on {body['target']}")  # type: ignore[arg-type]
            job = watch(client, job_id, console)
            report(console, client, job, time.monotonic() - begin)
    except (ApiError, Unreachable) as fault:
        console.print(f"The demo failed: {fault}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; what was measured is kept, and the service goes on with the job.")
        return 130
    epilogue(console, url, started, str(body["target"]))
    return 0 if job["state"] == "completed" else 1


def ensure_service(console: Console) -> tuple[str, int | None]:
    """(url, process id of the service or None if one was running): answering, with a device to measure on."""
    url = f"http://127.0.0.1:{DEFAULT_PORT}"
    if _answers(url):
        console.print(f"A tilewright service is running at {url}")
        _wait_ready(url, None)
        return url, None
    port = _free_port(DEFAULT_PORT)
    log = default_paths().data / "serve.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console.print(f"Starting the service (log: {log})")
    with log.open("ab") as out:
        # A session of its own: it stays up when the demo's terminal goes.
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright", "serve", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    _wait_ready(url, (process, log))
    return url, process.pid


def _answers(url: str) -> bool:
    try:
        with Client(url, timeout_s=2.0) as client:
            return client.get("/health/live").get("status") is not None
    except (ApiError, Unreachable, ValueError):
        return False


def _wait_ready(url: str, service: tuple["subprocess.Popen[bytes]", Path] | None) -> None:
    end = time.monotonic() + START_LIMIT_S
    reason = "no answer yet"
    while time.monotonic() < end:
        if service is not None and service[0].poll() is not None:
            tail = service[1].read_text(errors="replace")[-2000:]
            raise Unreachable(f"the service ended with status {service[0].returncode}:\n{tail}")
        try:
            with Client(url, timeout_s=5.0) as client:
                client.get("/health/ready")
                return
        except (ApiError, Unreachable) as fault:
            reason = str(fault)
        time.sleep(0.5)
    raise Unreachable(f"the service at {url} was not ready within {START_LIMIT_S:.0f} s: {reason}")


def _free_port(wanted: int) -> int:
    """`wanted`, or one that the system picks where that is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on the loopback interface")


def report(console: Console, client: Client, job: dict[str, Any], wall_s: float) -> None:
    """For each task its best schedule, latency, rate, the vendor's latency in the same run, speedup and trials."""
    console.print(f"\n{job['id']} {job['state']} ({job['stop_reason']}) after {wall_s:.0f} s", markup=False)
    for task in job["tasks"]:
        console.print(f"\n{describe_workload(task['workload'])}", markup=False, highlight=False)
        for line in _task_lines(client, task):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    trials = job["trials"]
    failed = ", ".join(f"{kind} {count}" for kind, count in trials["failed_by"].items() if count) or "none"
    console.print(f"\n{trials['done']} trials, {trials['ok']} valid; failures by kind: {failed}", highlight=False)
    overhead = job.get("search_overhead")
    if overhead is not None:
        console.print(f"Proposing, learning and committing took {100 * overhead:.1f} % of the time", highlight=False)


def _task_lines(client: Client, task: dict[str, Any]) -> list[str]:
    try:
        best = client.best(task["workload"])
    except ApiError as fault:
        return [str(fault)]
    schedule, baseline = best["schedule"], best.get("baseline") or {}
    fraction = (best.get("roofline") or {}).get("fraction")
    return [
        f"schedule  {schedule['id']}  {schedule['sketch']} {knobs_text(schedule['knobs'])}",
        f"latency   {seconds(best['latency_s'])}, {rate(best['tflops'])}"
        + ("" if fraction is None else f", {fraction:.2f} of the {best['roofline']['bound']} roof"),
        f"torch     {seconds(baseline.get('latency_s'))} in the same run"
        + (f": speedup {speedup(best)}, run {best['served']['kind']}" if baseline else ""),
        f"trials    {task['trials']}",
    ]


def epilogue(console: Console, url: str, started: int | None, kind: str) -> None:
    console.print(f"\nDashboard: {url}/")
    console.print(f"Ask again:  {Path(sys.executable).parent / 'tilewright'} best {ASK_AGAIN[kind]}", soft_wrap=True)
    if started is not None:
        console.print(f"Stop the service:  kill {started}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
