"""How many trials the search needs, replayed over recorded measurements: no device, the same answer everywhere.

    python -m benchmarks.search --records FILE [--seeds 10] [--trials 128]

FILE holds records as `tuner.records_file` describes them, ideally about 1,000 random candidates a task, for what a
search can find is what was recorded. Each method measures recorded candidates only. Writes docs/results/search.json:
`rows` hold, for each task and method, the best latency found over the best recorded after 8, 16, 32, 64 and 128
trials (median over seeds), and the trials to come within 2 % of it.
"""

import argparse
import importlib.metadata
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.result_file import RESULTS, ResultFile
from benchmarks.search_methods import Method, Records, at_random, regularised_evolution, with_model
from search_space.candidate import Candidate
from search_space.registry import generate_sketches
from tuner.outcome import Outcome
from tuner.presets import preset
from tuner.records_file import parse_lines
from tuner.task import Task, TuningRecord

CHECKPOINTS = (8, 16, 32, 64, 128)
CLOSE = 1.02
PROTOCOL = (
    "Replay of recorded measurements: every method measures recorded candidates only, at most once each, and sees what "
    "was recorded. gap@n: best latency found in n trials over the best recorded latency, median over seeds; a search "
    "that found nothing valid yet has none. trials_to_2_percent: median over seeds, null where most never came there."
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=Path, required=True, help="JSON lines (tuner.records_file)")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=CHECKPOINTS[-1])
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args(arguments)
    with options.records.open(encoding="utf-8") as lines:
        tasks = parse_lines(lines)
    rows = [
        row
        for task in tasks
        for row in compare(task, tasks, trials=options.trials, seeds=options.seeds, name=options.preset)
    ]
    result = ResultFile("search", PROTOCOL, _environment(tasks), rows=list(rows), summary=summarise(rows))
    print(result.write(options.out))


def compare(
    task: Task, tasks: Mapping[Task, list[TuningRecord]], *, trials: int, seeds: int, name: str
) -> list[Mapping[str, object]]:
    """One row a method; none for a task without a valid record or without a present sketch that its records are of."""
    spaces = generate_sketches(task.workload, task.target)
    known = {(s.sketch.name, s.sketch.version) for s in spaces}
    records = {
        r.candidate: r
        for r in tasks[task]
        if (r.candidate.sketch, r.candidate.version) in known and r.measurement.outcome is not Outcome.WORKER_LOST
    }
    latencies = [t for r in records.values() if (t := r.measurement.latency_s) is not None]
    if not latencies:
        return []
    others = [
        r
        for other, found in tasks.items()
        if other != task and (other.workload.op, other.target.kind) == (task.workload.op, task.target.kind)
        for r in found
    ]
    methods: dict[str, Method] = {
        "model": with_model(preset(name)),
        "regularised_evolution": regularised_evolution,
        "random": at_random,
    }
    if others:
        methods["model_with_transfer"] = with_model(preset(name), others)
    rows: list[Mapping[str, object]] = []
    for label, method in methods.items():
        orders = [method(task, spaces, records, trials, seed) for seed in range(seeds)]
        figures = _figures([gaps(order, records, min(latencies)) for order in orders])
        rows.append({**task.workload.to_json(), "method": label, "recorded": len(records), "seeds": seeds, **figures})
    return rows


def gaps(order: Sequence[Candidate], records: Records, best_s: float) -> list[float | None]:
    """After each trial: best latency so far / best recorded; None before the first valid one."""
    so_far: float | None = None
    out: list[float | None] = []
    for candidate in order:
        latency = records[candidate].measurement.latency_s
        if latency is not None and (so_far is None or latency < so_far):
            so_far = latency
        out.append(None if so_far is None else so_far / best_s)
    return out


def _figures(curves: Sequence[Sequence[float | None]]) -> dict[str, object]:
    out: dict[str, object] = {}
    for n in CHECKPOINTS:
        if all(len(c) >= n for c in curves):
            ends = [c[n - 1] for c in curves]
            known = [g for g in ends if g is not None]
            out[f"gap@{n}"] = statistics.median(known) if len(known) == len(ends) else None
    reached = [next((i + 1 for i, g in enumerate(c) if g is not None and g <= CLOSE), None) for c in curves]
    arrived = [float("inf") if n is None else n for n in reached]
    middle = statistics.median(arrived)
    out["trials_to_2_percent"] = middle if middle != float("inf") else None
    out["share_within_2_percent"] = sum(n is not None for n in reached) / len(reached)
    return out


def summarise(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """method -> geometric mean over tasks of the gap at each checkpoint that all its tasks have."""
    out: dict[str, object] = {}
    for method in dict.fromkeys(str(r["method"]) for r in rows):
        mine = [r for r in rows if r["method"] == method]
        means: dict[str, float] = {}
        for name in (f"gap@{n}" for n in CHECKPOINTS):
            found = [g for r in mine if isinstance(g := r.get(name), float)]
            if len(found) == len(mine):
                means[name] = statistics.geometric_mean(found)
        out[method] = means
    return out


def _environment(tasks: Mapping[Task, object]) -> dict[str, object]:
    return {
        "recorded_on": sorted({f"{t.target.model} ({t.target.arch}, {t.target.cores} cores)" for t in tasks}),
        "xgboost": importlib.metadata.version("xgboost-cpu"),
        "numpy": importlib.metadata.version("numpy"),
    }


if __name__ == "__main__":
    main()
