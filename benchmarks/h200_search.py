"""The whole search on a GPU, beside the vendor's kernels: `python -m benchmarks.h200_search`.

Each workload is tuned by a job of its own on a fresh database: candidates proposed by the model, compiled here,
measured by Ray's actor. The winner is then measured again in a new session, interleaved with the vendor's kernel in
random order, so that the ratio does not carry the search's luck.
"""

import argparse
import datetime
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from api.wiring import MeasurerChoice, build_measurer
from benchmarks.h200_search_cases import CASES
from benchmarks.paired import geometric_mean, paired_ratio
from benchmarks.result_file import ResultFile, gpu_environment
from benchmarks.tuning import Bench, Tuned
from search_space.workload import parse_workload
from tuner.best import Contestant
from tuner.idle import idle_share
from workers.host import host_target

PROTOCOL = (
    "Each workload tuned by its own job on a fresh database, builders already started; the winner measured again in a "
    "new session, interleaved with the vendor's kernel in random order, one time per round; a time is a CUDA graph of "
    "back-to-back launches over rotating operands that together exceed L2 four times, between events; ratio = median "
    "of vendor / ours over the rounds with a 95 % bootstrap interval; checked against float64 on random and "
    "adversarial inputs before timing. idle_share: wall time in which the device measured nothing while a built "
    "candidate waited."
)


def row(bench: Bench, name: str, fields: Mapping[str, object], trials: int, seed: int) -> dict[str, object]:
    """Tune one workload and measure its winner beside the vendor's kernel."""
    tuned = bench.tune([dict(fields)], trials, seed)
    winner, workload = tuned.winners[0], parse_workload(fields)
    final = bench.final(workload, [winner])
    ours = next(c for c in final.contestants if c.candidate == winner)
    vendor = next(c for c in final.contestants if c.name.startswith("vendor"))
    ratio, interval = paired_ratio(vendor.run_secs, ours.run_secs)
    latency, baseline = median(ours.run_secs), median(vendor.run_secs)
    library = vendor.name.removeprefix("vendor:")
    return {
        "suite": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **workload.to_json(),
        "latency_s": latency,
        "baselines": {library: baseline},
        "baseline": {"name": library, "latency_s": baseline},
        "ratio": ratio,
        "ratio_ci95": list(interval),
        "tflops": workload.flops() / latency / 1e12,
        "roof_fraction": bench.roof_fraction(workload, latency),
        "cache": "cold",
        "launch": "graph",
        "trials": tuned.trials[0],
        "wall_s": tuned.wall_s,
        "sketch": winner.sketch,
        "knobs": winner.knobs,
        "max_rel_err": ours.max_rel_err,
        **_effort(tuned),
    }


def _effort(tuned: Tuned) -> dict[str, object]:
    """How the wall time was spent, and what became of the candidates."""
    outcomes: dict[str, int] = {}
    for m in tuned.measurements:
        outcomes[m.outcome.value] = outcomes.get(m.outcome.value, 0) + 1
    return {
        "idle_share": idle_share(tuned.measurements),
        "outcomes": outcomes,
        "build_s": sum(m.build_secs for m in tuned.measurements),
        "measure_s": sum(m.interval[1] - m.interval[0] for m in tuned.measurements if m.interval is not None),
        "phase_s": dict(tuned.phase_seconds),
        "throttled": sum(m.observation.throttled for m in tuned.measurements),
    }


def stability(bench: Bench, name: str, trials: int, seeds: int) -> dict[str, object]:
    """One workload tuned with several seeds; the winners measured again together."""
    fields = dict(CASES[name])
    runs = [bench.tune([fields], trials, seed) for seed in range(seeds)]
    winners = [run.winners[0] for run in runs]
    final = bench.final(parse_workload(fields), list(dict.fromkeys(winners)))
    times = {c.candidate: _latency(c) for c in final.contestants if c.candidate is not None}
    latencies = [times[w] for w in winners]
    return {
        "suite": name,
        "seeds": seeds,
        "trials": trials,
        "latency_s": latencies,
        "spread": (max(latencies) - min(latencies)) / median(latencies),
        "winner_flip_rate": sum(w != winners[0] for w in winners[1:]) / max(1, seeds - 1),
        "wall_s": [run.wall_s for run in runs],
        "idle_share": [idle_share(run.measurements) for run in runs],
    }


def _latency(contestant: Contestant) -> float:
    return median(contestant.run_secs)


def run(bench: Bench, options: argparse.Namespace, began: float) -> None:
    here = host_target()
    environment = gpu_environment(bench.device.identity, here.model, here.cores)
    environment["roofs"] = None if bench.device.roofs is None else bench.device.roofs.to_json()
    result = ResultFile("h200_search", PROTOCOL, environment, commit=options.commit)
    print(f"ready after {time.monotonic() - began:.1f} s; roofs {environment['roofs']}", flush=True)
    chosen = options.only or list(CASES)
    if options.keep is not None:
        keep(result, options.keep, chosen)
    for name in chosen:
        if options.limit_s is not None and time.monotonic() - began > options.limit_s:
            print(f"{name}: left out, the time is over", flush=True)
            continue
        try:
            done = row(bench, name, CASES[name], options.trials, options.seed)
        except Exception as fault:  # noqa: BLE001  one workload's fault does not end the run; it is told in the file
            print(f"{name}: {type(fault).__name__}: {fault}", flush=True)
            result.tables.setdefault("failed", {})[name] = str(fault)  # type: ignore[index]
            continue
        result.rows.append(done)
        _tell(name, done)
        summarise(result)
        result.write(options.out)
    if options.seeds:
        table = stability(bench, options.seed_case, options.trials, options.seeds)
        result.tables["stability"] = table
        result.summary["spread_of_seeds"] = table["spread"]
        print("stability", table, flush=True)
    print(result.write(options.out), result.summary)


def keep(result: ResultFile, path: Path, chosen: Sequence[str]) -> None:
    """Rows of an earlier run for workloads that are not searched now. ValueError where it was another environment."""
    before = json.loads(path.read_text(encoding="utf-8"))
    for name, value in result.environment.items():
        if name != "roofs" and before["environment"].get(name) != value:
            raise ValueError(f"{path}: {name} was {before['environment'].get(name)!r} there and is {value!r} here")
    result.rows += [row for row in before["rows"] if row["suite"] not in chosen]
    result.tables.update(before["tables"])


def _tell(name: str, done: Mapping[str, object]) -> None:
    low, high = _floats(done["ratio_ci95"])
    idle = done["idle_share"]
    print(
        f"{name:17} {_float(done['latency_s']) * 1e6:9.2f} us  {_float(done['tflops']):6.1f} TFLOP/s  ratio "
        f"{_float(done['ratio']):.3f} [{low:.3f}, {high:.3f}]  {done['trials']} trials {_float(done['wall_s']):.1f} s  "
        f"idle {'-' if idle is None else f'{_float(idle):.3f}'}  build {_float(done['build_s']):.0f} s  measure "
        f"{_float(done['measure_s']):.1f} s  {done['outcomes']}  {done['sketch']}",
        flush=True,
    )


def summarise(result: ResultFile) -> None:
    ratios = [_float(r["ratio"]) for r in result.rows]
    walls = [_float(r["wall_s"]) for r in result.rows]
    idle = [_float(r["idle_share"]) for r in result.rows if r["idle_share"] is not None]
    result.summary = {
        "geometric_mean": geometric_mean(ratios),
        "worst": min(ratios),
        "rows": len(ratios),
        "longest_wall_s": max(walls),
        "mean_wall_s": sum(walls) / len(walls),
        **({"largest_idle_share": max(idle), "mean_idle_share": sum(idle) / len(idle)} if idle else {}),
    }


def _float(value: object) -> float:
    return float(str(value))


def _floats(values: object) -> Sequence[float]:
    assert isinstance(values, list)
    return [float(v) for v in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), help="these workloads, in this order")
    parser.add_argument("--trials", type=int, default=64, help="candidates measured per workload")
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=None, help="start no further workload after so many seconds")
    parser.add_argument("--seeds", type=int, default=5, help="searches of the stability table; 0 leaves it out")
    parser.add_argument("--seed-case", default="decode-16", choices=sorted(CASES))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--keep", type=Path, default=None, help="result file whose other rows are kept")
    parser.add_argument("--commit", default=None, help="the commit measured, where git is not there to say it")
    options = parser.parse_args()
    began = time.monotonic()
    measurer = build_measurer(MeasurerChoice.parse("ray"))
    try:
        run(Bench(measurer, options.preset, "cuda"), options, began)
    finally:
        measurer.close()


if __name__ == "__main__":
    main()
