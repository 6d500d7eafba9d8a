"""The service under a team's load: `python -m benchmarks.load`.

Two hundred event streams and fifty lookups a second while eight scripted jobs run, all through real processes. What is
asked of it stands in `summary`; the times are this machine's.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from api.wiring import build_store
from benchmarks.load_clients import Lookups, Watchers
from benchmarks.result_file import ROOT, ResultFile, cpu_environment
from benchmarks.service import percentiles, wait_ready
from benchmarks.service_records import fill
from tests.support.running_service import free_port
from workers.host import host_target

PROTOCOL = (
    "`tilewright serve --jobs 8` on SQLite with finished jobs in it, a scripted measurer of two devices (0.25 s a "
    "candidate); eight jobs are kept running. From another process: 200 event streams, each cut and taken up again "
    "(Last-Event-ID) every 20 to 60 s, their sequences checked for gaps and doubles; best-schedule lookups at 50 a "
    "second, sent on time whether or not the one before was answered, timed from when they were due. Memory: resident "
    "set of the HTTP process, as the median of the minute after the warm-up and of the last minute."
)
SCRIPT = {
    "devices": [{"id": "d0", "arch": "alpha"}, {"id": "d1", "arch": "alpha"}],
    "default": {"latency_s": "hash", "do": "sleep", "seconds": 0.25},
    "baseline": {"latency_s": 0.0015},
}
JOBS, WATCHERS, LOOKUPS_PER_S = 8, 200, 50.0


def serve(folder: Path, database: str, port: int) -> "subprocess.Popen[bytes]":
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "tilewright", "serve", "--db", database, "--port", str(port), "--jobs", str(JOBS)]
    command += ["--measurer", f"scripted:{folder / 'script.json'}"]
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(folder / "cache"), "TILEWRIGHT_DATA": str(folder)}
    with (folder / "serve.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


async def keep_jobs(client: httpx.AsyncClient, jobs: list[str], stop: asyncio.Event) -> None:
    """Eight jobs that have not ended, in `jobs`."""
    while not stop.is_set():
        for place in range(JOBS):
            if place < len(jobs):
                answer = await client.get(f"/v1/jobs/{jobs[place]}")
                if answer.status_code != 200 or answer.json()["state"] not in ("completed", "failed", "cancelled"):
                    continue
            shape = {"op": "gemm", "m": 64 + 8 * place, "n": 256, "k": 256, "dtype": "float32"}
            body = {"workload": shape, "target": {"kind": "cpu", "arch": "alpha"}, "max_trials": 400}
            made = (await client.post("/v1/jobs", json=body)).raise_for_status().json()["id"]
            jobs[place : place + 1] = [made]
        await asyncio.sleep(5.0)


async def sample_memory(pid: int, stop: asyncio.Event) -> list[tuple[float, float]]:
    """(seconds since the start, resident MiB) once a second."""
    process, begin, out = psutil.Process(pid), time.monotonic(), []
    while not stop.is_set():
        out.append((time.monotonic() - begin, process.memory_info().rss / 2**20))
        await asyncio.sleep(1.0)
    return out


async def drive(url: str, pid: int, shapes: list[dict[str, object]], seconds: float) -> dict[str, object]:
    stop, jobs = asyncio.Event(), []
    limits = httpx.Limits(max_connections=WATCHERS + 100, max_keepalive_connections=WATCHERS + 100)
    async with httpx.AsyncClient(base_url=url, timeout=30.0, limits=limits) as client:
        keeper = asyncio.create_task(keep_jobs(client, jobs, stop))
        while len(jobs) < JOBS:
            await asyncio.sleep(0.2)
        watchers, lookups = Watchers(client, jobs, WATCHERS, stop), Lookups(client, shapes, LOOKUPS_PER_S, stop)
        tasks = [asyncio.create_task(t) for t in (watchers.run(), lookups.run())]
        memory = asyncio.create_task(sample_memory(pid, stop))
        await asyncio.sleep(seconds)
        stop.set()
        await asyncio.gather(keeper, *tasks)
        samples = await memory
    return {
        "lookups": percentiles(lookups.seconds) | {"failed": lookups.failed},
        "watchers": watchers.summary(),
        "memory_mib": [[round(t), round(m, 1)] for t, m in samples[:: max(1, len(samples) // 60)]],
        "memory_growth_mib": growth(samples),
    }


def growth(samples: list[tuple[float, float]]) -> float:
    """Median of the last minute minus that of the minute after a tenth of the run (at most two minutes): imports,
    pools and caches fill at first."""
    end = samples[-1][0]
    warm = min(120.0, end / 10)
    width = min(60.0, end / 4)
    first = sorted(m for t, m in samples if warm <= t <= warm + width)
    last = sorted(m for t, m in samples if t >= end - width)
    return last[len(last) // 2] - first[len(first) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    target = host_target()
    result = ResultFile("load", PROTOCOL, cpu_environment(target.model, target.arch, target.cores))
    with tempfile.TemporaryDirectory() as temporary:
        folder, port = Path(temporary), free_port()
        database = f"sqlite:///{folder / 'load.db'}"
        store = build_store(database, migrate=True)
        shapes = fill(store, target, options.records)
        store.close()
        service = serve(folder, database, port)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client:
                wait_ready(client)
            figures = asyncio.run(drive(f"http://127.0.0.1:{port}", service.pid, shapes, options.minutes * 60.0))
        finally:
            service.terminate()
            service.wait(60)
    result.tables = {"minutes": options.minutes, "records": options.records, **figures}
    result.summary = summary(figures)
    print(result.write(options.out), result.summary)
    return int(not all(v for k, v in result.summary.items() if isinstance(v, bool)))


def summary(figures: dict[str, object]) -> dict[str, object]:
    lookups, watchers = figures["lookups"], figures["watchers"]
    assert isinstance(lookups, dict)
    assert isinstance(watchers, dict)
    grown = float(str(figures["memory_growth_mib"]))
    return {
        "lookup_p99_ms": lookups["p99_ms"],
        "lookup_p99_under_500_ms": lookups["p99_ms"] < 500.0 and lookups["failed"] == 0,
        "memory_growth_mib": round(grown, 1),
        "memory_growth_under_10_mb": grown * 2**20 < 10e6,
        "events": watchers["events"],
        "reconnects": watchers["reconnects"],
        "no_event_dropped": watchers["gaps"] == 0 and watchers["doubles"] == 0 and watchers["events"] > 0,
    }


if __name__ == "__main__":
    sys.exit(main())
