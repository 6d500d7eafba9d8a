"""From the logs of `benchmarks.h200_gemm race` to the result file and the compact records.

    python -m benchmarks.h200_report LOG... --out docs/results/h200_gemm.json \\
        --records benchmarks/records/h200_gemm.jsonl.gz
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_candidates import race_entries
from benchmarks.h200_shapes import layout_workloads, square_workloads, unaligned_workloads
from benchmarks.records import Recorded, write_records
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tuner.outcome import Outcome

# Read rate and bf16 rate that this card was seen to reach (H200, random data): what roof_fraction is a share of.
ROOF_BYTES_PER_S = 4.3e12
ROOF_FLOPS_PER_S = 7.9e14
PROTOCOL = (
    "Every candidate is first checked twice on two inputs, with the output poisoned by NaN: random normal "
    "(against float64, |C - C64| <= (16 + 4 sqrt k) 2^-24 |A||B| + one rounding of the output) and cancelling "
    "sums (exact equality). Then a probe of one to three graph replays; over 1.5 times the best it is dropped. "
    "The best seven (five in the first sitting), the best three with dependent launch and torch.matmul (cuBLAS) "
    "take turns in random order, first for 0.1 s that is not counted (two rounds in the first sitting), then over "
    "12-30 rounds; a round is one replay of a CUDA graph of back-to-back launches over rotating input sets of "
    "four times L2 together (at most 64 sets; cache says warm where that is less than twice L2), CUDA events "
    "round it. The winner is chosen on the first third of the rounds, latency_s and ratio (median of paired "
    "ratios, 95 % bootstrap interval) come from the others; then it is checked again. Prebuilt cubins with run- "
    "time extents: trials counts the candidates tried on the shape, wall_s all that its race took, compilation "
    "excluded. roof_fraction: max(bytes once / 4.3 TB/s, flops / 790 TFLOP/s) over latency_s. The table "
    "layouts_types_epilogues is there for what was checked: torch computes the product alone there, without the "
    "epilogue."
)
Row = dict[str, Any]


class Shapes:
    """What the logs say of each shape; a later log's final replaces an earlier one's."""

    def __init__(self) -> None:
        self.environment: list[Row] = []
        self.date = ""
        self.tried: dict[int, dict[str, Row]] = {}
        self.finals: dict[int, Row] = {}
        self.walls: dict[int, float] = {}
        self.lost: list[Row] = []
        self.wrong_after: list[Row] = []

    def read(self, path: Path) -> None:
        begun: dict[int, float] = {}
        for text in path.read_text().splitlines():
            line = json.loads(text)
            index = line.get("i", -1)
            if "environment" in line:
                self.environment.append(line["environment"])
                self.date = line["date"]
            elif "shape" in line and "ended" in line:
                self.lost.append({"i": line["shape"], "candidate": line["start"], "ended": line["ended"]})
            elif "shape" in line:
                begun[index] = line["t"]
            elif "tried" in line:
                self.tried.setdefault(index, {})[line["tried"]] = line
            elif "final" in line:
                self.finals[index] = line
            elif "wrong_after_timing" in line:
                self.wrong_after.append({"i": index, "candidate": line["wrong_after_timing"]})
            elif "done" in line and index in begun:
                self.walls[index] = line["t"] - begun[index]


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def roof_fraction(w: GemmWorkload, latency_s: float) -> float:
    return max(w.min_bytes() / ROOF_BYTES_PER_S, w.flops() / ROOF_FLOPS_PER_S) / latency_s


def make_row(
    suite: str, w: GemmWorkload, shapes: Shapes, index: int, by: dict[str, Candidate], launch: str
) -> Row | None:
    final = shapes.finals.get(index)
    if final is None or launch not in final["final"]:
        return None
    best = final["final"][launch]
    candidate = by[best["candidate"]]
    ratio, low, high = best["ratio"]
    shown = {k: v for k, v in w.to_json().items() if k not in ("op", "dtype_a", "dtype_b", "dtype_out")}
    return {
        "suite": suite, **shown, "dtype": w.dtype_a, "latency_s": best["latency_s"],
        "baselines": {"cublas": final["torch_s"]}, "baseline": {"name": "cublas", "latency_s": final["torch_s"]},
        "ratio": round(ratio, 4), "ratio_ci95": [round(low, 4), round(high, 4)],
        "roof_fraction": round(roof_fraction(w, best["latency_s"]), 4), "cache": "cold" if final["cold"] else "warm",
        "launch": launch, "trials": len(shapes.tried.get(index, {})), "wall_s": round(shapes.walls.get(index, 0.0), 2),
        "sketch": candidate.sketch, "knobs": candidate.knobs, "max_rel_err": best["max_rel_err"],
    }  # fmt: skip


def suite_of(index: int) -> str:
    layouts = len(layout_workloads())
    unaligned = layouts + len(unaligned_workloads())
    if index < layouts:
        return "layouts"
    if index < unaligned:
        return "unaligned"
    return "squares" if index < unaligned + len(square_workloads()) else "models"


def summarise(rows: Iterable[Row], dependent: Iterable[Row], expected: int) -> Row:
    models = [r for r in rows if r["suite"] == "models"]
    small = [r for r in models if r["m"] <= 128]
    later = [r for r in dependent if r["suite"] == "models"]
    heavy = [r for r in later if r["n"] * r["k"] * 2 > 1e8 and r["m"] <= 32]

    def mean(chosen: Iterable[Row]) -> float | None:
        value = geometric_mean([r["ratio"] for r in chosen])
        return None if value is None else round(value, 4)

    slow = sorted((r for r in models if r["ratio_ci95"][1] < 0.98), key=lambda r: r["ratio"])
    return {
        "shapes_timed": len(models),
        "shapes_expected": expected,
        "geomean_all": mean(models),
        "geomean_m_le_128": mean(small),
        "geomean_m_gt_128": mean(r for r in models if r["m"] > 128),
        "geomean_by_m": {str(m): mean(r for r in models if r["m"] == m) for m in sorted({r["m"] for r in models})},
        "worst": min((r["ratio"] for r in models), default=None),
        "surely_under_0.98": [[r["m"], r["n"], r["k"], r["ratio"]] for r in slow],
        "geomean_dependent_launch_m_le_128": mean(later),
        "roof_share_dependent_weights_over_100MB_m_le_32": geometric_mean([r["roof_fraction"] for r in heavy]),
        "geomean_unaligned": mean(r for r in rows if r["suite"] == "unaligned"),
        "geomean_squares": mean(r for r in rows if r["suite"] == "squares"),
    }


def report(logs: Sequence[Path]) -> tuple[Row, list[Recorded]]:
    shapes = Shapes()
    for log in logs:
        shapes.read(log)
    rows: list[Row] = []
    dependent: list[Row] = []
    layouts: list[Row] = []
    records: list[Recorded] = []
    entries = race_entries()
    for index, (w, chosen) in enumerate(entries):
        by, suite = {c.key: c for c in chosen}, suite_of(index)
        for launch, target in (("stream", layouts if suite == "layouts" else rows), ("dependent", dependent)):
            if (row := make_row(suite, w, shapes, index, by, launch)) is not None:
                target.append(row)
        for key, line in shapes.tried.get(index, {}).items():
            if key in by:
                times = tuple(line.get("run_secs", ()))
                records.append(Recorded(w, by[key], Outcome(line["outcome"]), times, line.get("max_rel_err")))
    expected = sum(suite_of(i) == "models" for i in range(len(entries)))
    missing = [[w.m, w.n, w.k] for i, (w, _) in enumerate(entries) if i not in shapes.finals]
    checked = [r for r in records if r.outcome is Outcome.OK]
    result = {
        "command": "python -m benchmarks.h200_emit DIR; python -m benchmarks.h200_gemm compile DIR; "
        "python -m benchmarks.h200_gemm race DIR --out LOG; python -m benchmarks.h200_report LOG",
        "date": shapes.date,
        "commit": commit(),
        "environment": environment_of(shapes.environment),
        "protocol": PROTOCOL,
        "rows": rows,
        "tables": {
            "dependent_launch": dependent,
            "layouts_types_epilogues": layouts,
            "lost_children": shapes.lost,
            "wrong_after_timing": shapes.wrong_after,
            "not_timed": missing,
        },
        "summary": {
            **summarise(rows, dependent, expected),
            "candidates_tried": len(records),
            "candidates_right": len(checked),
            "candidates_wrong": sum(r.outcome is Outcome.WRONG_ANSWER for r in records),
        },
    }
    return result, records


def earlier_sitting(log: Path) -> list[list[Any]]:
    """[m, n, k, ratio, low, high] of another sitting's finals, for comparison; its candidates were fewer."""
    shapes = Shapes()
    shapes.read(log)
    rows = []
    for index, (w, _) in enumerate(race_entries()):
        best = shapes.finals.get(index, {}).get("final", {}).get("stream")
        if best is not None and suite_of(index) != "layouts":
            rows.append([w.m, w.n, w.k, *(round(x, 4) for x in best["ratio"])])
    return rows


def environment_of(sittings: Sequence[Row]) -> Row:
    """The last sitting's device and libraries, and the compilers; run where the kernels were made."""
    from workers.build.cuda import identity

    last = sittings[-1] if sittings else {}
    made = identity()
    return {
        "device": last.get("device"),
        "driver": last.get("nvidia_smi", {}).get("driver_version"),
        "cuda": last.get("cuda"),
        "torch": last.get("torch"),
        "tvm": made["tvm"],
        "compiler": made["compiler"],
        "cores": last.get("cores"),
        "sittings": list(sittings),
    }


def commit() -> str:
    ran = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return ran.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--earlier", type=Path, help="log of another sitting: its ratios become a table")
    parser.add_argument("--host", type=Path, help="output of benchmarks.h200_host: becomes a table")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path)
    args = parser.parse_args()
    result, records = report(args.logs)
    if args.earlier:
        result["tables"]["earlier_sitting_before_the_staged_store_was_fixed"] = earlier_sitting(args.earlier)
    if args.host:
        result["tables"]["host_overhead"] = json.loads(args.host.read_text())["host"]
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.records:
        write_records(args.records, records, {"sittings": result["environment"]["sittings"]})
    json.dump(result["summary"], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
