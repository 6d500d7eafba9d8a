"""CPU schedules found by the search, beside torch: `python -m benchmarks.cpu`.

Each workload is tuned by a job of its own on a fresh database (the whole loop: search, Ray workers, store). The winner
is then measured again in a new session, interleaved with torch in random order, so that the ratio does not carry the
search's luck. Caches are warm; both use the same threads.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from api.wiring import MeasurerChoice, build_measurer
from benchmarks import metaschedule
from benchmarks.cpu_cases import DEMO_TRIALS, HEADLINE, METASCHEDULE, PACKED_AHEAD, STABILITY, Case
from benchmarks.paired import geometric_mean, paired_ratio
from benchmarks.result_file import ResultFile, cpu_environment
from benchmarks.tuning import Bench
from search_space.workload import parse_workload

PROTOCOL = (
    "Each workload tuned by its own job on a fresh database; the winner measured again in a new session, interleaved "
    "with torch in random order, one time per round; ratio = median of torch / ours over the rounds with a 95 % "
    "bootstrap interval; caches warm; torch and ours on the same threads; checked against float64 on random and "
    "adversarial inputs before timing."
)


def row(bench: Bench, case: Case, trials: int) -> dict[str, object]:
    """Tune one case and measure its winner beside torch."""
    tuned = bench.tune([case.workload], trials, seed=0)
    winner, workload = tuned.winners[0], parse_workload(case.workload)
    final = bench.final(workload, [winner])
    ours = next(c for c in final.contestants if c.candidate == winner)
    torch = next(c for c in final.contestants if c.name.startswith("vendor"))
    ratio, interval = paired_ratio(torch.run_secs, ours.run_secs)
    latency, baseline = median(ours.run_secs), median(torch.run_secs)
    return {
        "suite": case.suite,
        **workload.to_json(),
        "latency_s": latency,
        "baselines": {"torch": baseline},
        "baseline": {"name": "torch", "latency_s": baseline},
        "ratio": ratio,
        "ratio_ci95": list(interval),
        "gflops": workload.flops() / latency / 1e9,
        "roof_fraction": bench.roof_fraction(workload, latency),
        "cache": "warm",
        "launch": "call",
        "trials": tuned.trials[0],
        "wall_s": tuned.wall_s,
        "sketch": winner.sketch,
        "knobs": winner.knobs,
        "max_rel_err": ours.max_rel_err,
    }


def stability(bench: Bench, seeds: int) -> dict[str, object]:
    """The demo's job tuned with several seeds; the winners of each task measured again together."""
    workloads = [c.workload for c in STABILITY]
    runs = [bench.tune(workloads, DEMO_TRIALS, seed).winners for seed in range(seeds)]
    table = []
    for i, workload in enumerate(workloads):
        winners = [run[i] for run in runs]
        final = bench.final(parse_workload(workload), list(dict.fromkeys(winners)))
        times = {c.candidate: median(c.run_secs) for c in final.contestants if c.candidate is not None}
        latencies = [times[w] for w in winners]
        spread = (max(latencies) - min(latencies)) / median(latencies)
        flips = sum(w != winners[0] for w in winners[1:]) / max(1, len(winners) - 1)
        table.append({"workload": workload, "latency_s": latencies, "spread": spread, "winner_flip_rate": flips})
    return {
        "seeds": seeds,
        "trials": DEMO_TRIALS,
        "rows": table,
        "largest_spread": max(float(str(r["spread"])) for r in table),
    }


def summarise(result: ResultFile) -> None:
    ratios = [float(str(r["ratio"])) for r in result.rows]
    result.summary = {"geometric_mean": geometric_mean(ratios), "worst": min(ratios), "rows": len(ratios)}


def chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    return [c for c in cases if not only or any(part in c.label for part in only)]


def measured(bench: Bench, cases: Sequence[Case], rows: list[Mapping[str, object]], trials: int) -> Iterator[None]:
    """Measure the cases, each into its row (in place of an earlier one of the same case)."""
    for case in cases:
        done = row(bench, case, trials)
        at = next((i for i, earlier in enumerate(rows) if case.is_of(earlier)), len(rows))
        rows[at : at + 1] = [done]
        print(f"{case.label} ratio {done['ratio']:.3f} {done['ratio_ci95']}", flush=True)
        yield


def with_roof(bench: Bench, earlier: Mapping[str, object]) -> Mapping[str, object]:
    """A row measured before, its share taken of the roofs that are known now."""
    case = next(c for c in (*HEADLINE, *PACKED_AHEAD) if c.is_of(earlier))
    fraction = bench.roof_fraction(parse_workload(case.workload), float(str(earlier["latency_s"])))
    return {**earlier, "roof_fraction": fraction}


def begin(bench: Bench, options: argparse.Namespace) -> ResultFile:
    target, roofs = bench.device.target, bench.device.roofs
    environment = cpu_environment(target.model, target.arch, target.cores)
    environment["roofs"] = None if roofs is None else roofs.to_json()
    result = ResultFile("cpu", PROTOCOL, environment)
    if options.update:
        result.resume(options.out)
        result.rows = [with_roof(bench, r) for r in result.rows]
        result.tables["packed_ahead"] = [with_roof(bench, r) for r in rows_of(result.tables.get("packed_ahead", []))]
    return result


def run(bench: Bench, options: argparse.Namespace) -> None:
    result = begin(bench, options)
    for _ in measured(bench, chosen(HEADLINE, options.only), result.rows, options.trials):
        summarise(result)
        result.write(options.out)
    if options.packed:
        packed = rows_of(result.tables.setdefault("packed_ahead", []))
        for _ in measured(bench, chosen(PACKED_AHEAD, options.only), packed, options.trials):
            result.write(options.out)
    if options.seeds:
        result.tables["stability"] = stability(bench, options.seeds)
        result.write(options.out)
    if options.metaschedule:
        result.tables["metaschedule"] = [metaschedule.compare(c.workload, result.rows) for c in METASCHEDULE]
    print(result.write(options.out), result.summary)


def rows_of(table: object) -> list[Mapping[str, object]]:
    assert isinstance(table, list)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64, help="candidates measured per workload")
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--seeds", type=int, default=5, help="searches of the stability table; 0 leaves it out")
    parser.add_argument(
        "--only", action="append", default=[], help="only cases whose label (gemm:512x512x512) holds this; repeatable"
    )
    parser.add_argument(
        "--update", action="store_true", help="replace rows and tables of the result file that is there"
    )
    parser.add_argument("--packed", action=argparse.BooleanOptionalAction, default=True, help="weights packed ahead")
    parser.add_argument("--metaschedule", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    measurer = build_measurer(MeasurerChoice.parse("ray"))
    try:
        run(Bench(measurer, options.preset), options)
    finally:
        measurer.close()


if __name__ == "__main__":
    main()
