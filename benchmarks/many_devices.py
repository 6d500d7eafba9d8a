"""Trials per second against the number of devices: `python -m benchmarks.many_devices --devices 1 2 4 8`.

On GPUs (`--measurer ray`) the devices are this host's, real candidates are built and measured, and
CUDA_VISIBLE_DEVICES is respected; with `--measurer scripted` the devices are declared and a candidate takes a fixed
time, so that what is seen is the search, the builders and the measurer themselves.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from api.runner.service import Runner
from api.wiring import build_store, policies
from benchmarks.result_file import ROOT, ResultFile, cpu_environment
from db import SqlStore
from search_space.workload import parse_workload
from tuner.job import JobSpec, TaskSpec
from tuner.ports import DeviceInfo, Measurer
from workers.config import MeasurerConfig
from workers.host import host_target
from workers.ray_measurer import RayMeasurer
from workers.script import Entry, Script
from workers.scripted_devices import parse_devices

PROTOCOL = (
    "One job of 16 tasks on one runner and one local Ray, once for each number of devices; the others are left out of "
    "the job. Trials per second: committed trials over the time from the first measurement's start to the last one's "
    "end, finals left out. linear: that rate over the number of devices times the rate on one. Overlap: pairs of "
    "measurements on one device whose intervals meet. Taken away: in a further run on all devices the measuring actor "
    "of one is killed again and again from the middle on, so that it counts as gone."
)
TASKS = 16


class Some:
    """A measurer that shows only the first devices of another."""

    def __init__(self, inner: Measurer, count: int) -> None:
        self._inner, self._count = inner, count

    def devices(self) -> Sequence[DeviceInfo]:
        return self._inner.devices()[: self._count]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@dataclass(frozen=True)
class Rate:
    """`per_device`: trials of each device; `phase_secs`: the job's time by phase, over all its tasks."""

    devices: int
    trials: int
    seconds: float
    per_device: dict[str, int]
    overlaps: int
    phase_secs: dict[str, float]

    @property
    def per_second(self) -> float:
        return self.trials / self.seconds


def tune(measurer: Measurer, folder: Path, count: int, trials: int, kind: str, after: threading.Event) -> Rate:
    """Run the job to its end; `after` is set once half of the trials are committed."""
    store = build_store(f"sqlite:///{folder / f'devices-{count}-{time.time_ns()}.db'}", migrate=True)
    try:
        tasks = tuple(TaskSpec(parse_workload(shape(i, kind))) for i in range(TASKS))
        spec = JobSpec(tasks, max_trials=trials, preset="quick")
        job, _ = store.create_job(spec, None, time.time())
        runner = Runner(
            store, Some(measurer, count), policies(), "benchmark", 60.0, threading.Event(), learns=kind != "cpu"
        )
        watcher = threading.Thread(target=_tell_half, args=(store, job.id, trials, after), daemon=True)
        watcher.start()
        while not runner.run_once():
            time.sleep(0.1)
        watcher.join()
        view = store.job(job.id)
        if view.trials_done != trials:
            raise RuntimeError(f"{view.trials_done} of {trials} trials: {view.state}, {view.stop_reason}, {view.error}")
        return rate(store, job.id, count)
    finally:
        store.close()


def _tell_half(store: SqlStore, job: str, trials: int, after: threading.Event) -> None:
    while store.job(job).trials_done < trials // 2:
        time.sleep(0.2)
    after.set()


def shape(place: int, kind: str) -> dict[str, object]:
    n = 1024 * (1 + place % 4) if kind == "cuda" else 64 * (1 + place % 4)
    m = (16, 512, 2048, 4096)[place // 4] if kind == "cuda" else 16 * (1 + place // 4)
    return {"op": "gemm", "m": m, "n": n, "k": n, "dtype": "bfloat16" if kind == "cuda" else "float32"}


def rate(store: SqlStore, job: str, count: int) -> Rate:
    taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
    cursor, trials = None, 0
    while True:
        page = store.trials(job, None, None, 500, cursor)
        for t in page.items:
            trials += 1
            if t.started_at is not None and t.finished_at is not None and t.device_id:
                taken[t.device_id].append((t.started_at, t.finished_at))
        cursor = page.next_cursor
        if cursor is None:
            break
    every = [i for intervals in taken.values() for i in intervals]
    seconds = max(e for _, e in every) - min(s for s, _ in every)
    overlaps = sum(a[1] > b[0] for i in taken.values() for a, b in itertools.pairwise(sorted(i)))
    phases = {name: round(spent, 2) for name, spent in store.job(job).phase_seconds.items()}
    return Rate(count, trials, seconds, {d: len(i) for d, i in taken.items()}, overlaps, phases)


def scripted(folder: Path, count: int, seconds: float) -> RayMeasurer:
    devices = parse_devices([{"id": f"scripted-{i}", "kind": "cpu", "arch": "alpha"} for i in range(count)])
    script = Script(default=Entry(do="sleep", seconds=seconds), vendor=Entry(latency_s=0.0015), devices=devices)
    return RayMeasurer(_config(folder, script))


def _config(folder: Path, script: Script | None) -> MeasurerConfig:
    temporary = Path(tempfile.gettempdir())
    return MeasurerConfig(
        cache_dir=folder / "cache", lock_dir=temporary / "tilewright-locks", temp_parent=temporary, scenario=script
    )


def taken_away(measurer: RayMeasurer, folder: Path, count: int, trials: int, kind: str) -> dict[str, object]:
    """The same job while the last device's actor is killed, again and again, from the middle on."""
    victim, half, stop = measurer.devices()[count - 1].device_id, threading.Event(), threading.Event()

    def keep_killing() -> None:
        half.wait()
        while not stop.is_set():
            measurer.kill_actor(victim)
            stop.wait(0.5)

    killer = threading.Thread(target=keep_killing, daemon=True)
    killer.start()
    try:
        found = tune(measurer, folder, count, trials, kind, half)
    finally:
        stop.set()
        half.set()
        killer.join()
    return {"device": victim, "trials": found.trials, "lost": trials - found.trials, "overlaps": found.overlaps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--measurer", choices=("ray", "scripted"), default="scripted")
    parser.add_argument("--trials", type=int, default=320, help="of each job")
    parser.add_argument("--seconds", type=float, default=0.5, help="what a scripted candidate takes")
    parser.add_argument("--name", default="many_devices", help="of the result file")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    target = host_target()
    result = ResultFile(options.name, PROTOCOL, cpu_environment(target.model, target.arch, target.cores))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        real = options.measurer == "ray"
        measurer = (
            RayMeasurer(_config(folder, None)) if real else scripted(folder, max(options.devices), options.seconds)
        )
        try:
            measure(result, measurer, folder, options.devices, options.trials)
        finally:
            measurer.close()
    print(result.write(options.out), result.summary)
    return int(result.summary["overlaps"] != 0 or result.summary["lost"] != 0)


def measure(result: ResultFile, measurer: RayMeasurer, folder: Path, counts: Sequence[int], trials: int) -> None:
    present = wait_for(measurer, max(counts))
    kind = present[0].target.kind
    names = [d.device_id for d in present]
    result.environment = {**result.environment, "device": present[0].target.model, "devices": names}
    rates = [tune(measurer, folder, n, trials, kind, threading.Event()) for n in counts]
    single = rates[0].per_second / rates[0].devices
    linear = {str(r.devices): round(r.per_second / single / r.devices, 3) for r in rates}
    result.tables["rates"] = [vars(r) | {"per_second": r.per_second, "linear": linear[str(r.devices)]} for r in rates]
    away = taken_away(measurer, folder, max(counts), trials, kind) if max(counts) > 1 else {"lost": 0, "overlaps": 0}
    result.tables["taken_away"] = away
    result.summary = {
        "linear": linear,
        "trials_per_s": {str(r.devices): round(r.per_second, 2) for r in rates},
        "overlaps": sum(r.overlaps for r in rates) + int(str(away["overlaps"])),
        "lost": away["lost"],
    }


def wait_for(measurer: Measurer, count: int) -> Sequence[DeviceInfo]:
    end = time.monotonic() + 180.0
    while time.monotonic() < end:
        present = measurer.devices()
        if len(present) >= count:
            return present
        time.sleep(0.5)
    raise SystemExit(f"{count} devices are asked for, there are {len(measurer.devices())}")


if __name__ == "__main__":
    sys.exit(main())
