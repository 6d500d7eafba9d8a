"""The service under load, from a second process: `python -m benchmarks.service`.

On a database with many records: latency of best-schedule queries; latency of job status while a job is being built and
measured; resident memory of the HTTP process. Times are this machine's; the bounds asked of them are in `summary`.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import numpy as np
import psutil

from api.wiring import build_store
from benchmarks.result_file import ResultFile, cpu_environment
from benchmarks.service_records import fill
from workers.host import host_target

PROTOCOL = (
    "A database filled with finished jobs, each in one transaction with the rows that a runner leaves; `tilewright "
    "serve` on it; requests sent one after another from this process over one kept connection; a real job (building "
    "and measuring) runs meanwhile for the status figures. Milliseconds from before a request is sent to after its "
    "body was read."
)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    at = np.percentile(np.asarray(seconds) * 1e3, (50, 95, 99))
    return {"p50_ms": float(at[0]), "p95_ms": float(at[1]), "p99_ms": float(at[2]), "requests": len(seconds)}


def timed(count: int, request: Callable[[int], httpx.Response]) -> list[float]:
    out = []
    for i in range(count):
        begin = time.perf_counter()
        request(i).raise_for_status()
        out.append(time.perf_counter() - begin)
    return out


def wait_ready(client: httpx.Client) -> None:
    end = time.monotonic() + 120.0
    while time.monotonic() < end:
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError("the service was not ready within 120 s")


def measure(url: str, pid: int, shapes: Sequence[dict[str, object]], requests: int) -> dict[str, object]:
    rng = random.Random(0)
    with httpx.Client(base_url=url, timeout=30.0) as client:
        wait_ready(client)
        ask = [{k: str(v) for k, v in s.items()} | {"target": "cpu"} for s in shapes]
        timed(50, lambda i: client.get("/v1/schedules/best", params=rng.choice(ask)))
        best = timed(requests, lambda i: client.get("/v1/schedules/best", params=rng.choice(ask)))
        body = {"workload": {"op": "gemm", "m": 512, "n": 512, "k": 512, "dtype": "float32"}, "max_trials": 256}
        job = client.post("/v1/jobs", json=body).raise_for_status().json()["id"]
        while client.get(f"/v1/jobs/{job}").json()["trials"]["done"] == 0:
            time.sleep(0.1)
        status = timed(requests // 4, lambda i: client.get(f"/v1/jobs/{job}"))
        busy = client.get(f"/v1/jobs/{job}").json()["state"]
        client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    memory = psutil.Process(pid).memory_info().rss / 2**20
    return {
        "best": percentiles(best),
        "status_while_building": percentiles(status) | {"job_state_after": busy},
        "api_resident_mib": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8461)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    target = host_target()
    result = ResultFile("service", PROTOCOL, cpu_environment(target.model, target.arch, target.cores))
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'bench.db'}"
        store = build_store(database, migrate=True)
        shapes = fill(store, target, options.records)
        store.close()
        command = [sys.executable, "-m", "tilewright", "serve", "--db", database, "--port", str(options.port)]
        service = subprocess.Popen(command, env={**os.environ, "TILEWRIGHT_CACHE": folder})
        try:
            url = f"http://127.0.0.1:{options.port}"
            figures = measure(url, service.pid, shapes, options.requests)
        finally:
            service.terminate()
            service.wait(60)
    result.tables = {"records": options.records, **figures}
    best, status = figures["best"], figures["status_while_building"]
    assert isinstance(best, dict)
    assert isinstance(status, dict)
    result.summary = {
        "best_p50_under_3_ms": best["p50_ms"] < 3.0,
        "best_p99_under_20_ms": best["p99_ms"] < 20.0,
        "status_p99_under_100_ms": status["p99_ms"] < 100.0,
        "api_under_300_mib": float(str(figures["api_resident_mib"])) < 300.0,
    }
    print(result.write(options.out), result.tables, result.summary)


if __name__ == "__main__":
    main()
