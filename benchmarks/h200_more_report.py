"""From logs of `benchmarks.h200_more race` to result files: `python -m benchmarks.h200_more_report LOG... [--write]`.

Prints one line a workload; --write also writes docs/results/h200_gemm_{small,fp8,grouped}.json.
"""

import argparse
import collections
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_more_candidates import race_entries
from benchmarks.result_file import ResultFile
from search_space.gemm import GemmWorkload

Row = dict[str, Any]
COMMAND = (
    "python -m benchmarks.h200_more_emit DIR; python -m benchmarks.h200_more compile DIR; "
    "python -m benchmarks.h200_more race DIR --out LOG; python -m benchmarks.h200_more_report LOG --write"
)
ROOF_BYTES_PER_S = 4.3e12
ROOF_FLOPS_PER_S = {"float8_e4m3": 1.5e15, "bfloat16": 7.9e14}
BASELINE = {
    "gemv": "cublas",
    "fp8_tensor": "torch_scaled_mm",
    "fp8_block": "torch_scaled_mm",
    "grouped": "torch_grouped_mm",
}
FILES = {"h200_gemm_small": ("gemv",), "h200_gemm_fp8": ("fp8_tensor", "fp8_block"), "h200_gemm_grouped": ("grouped",)}
PROTOCOL = (
    "Every candidate is first checked twice on three inputs with the output poisoned by NaN: random and adversarial "
    "(workers.inputs; against float64, workers.check; without the adversarial one where the operands exceed 8 GiB) "
    "and cancelling sums (exact equality, groups of 0, 1, m - 1, m and m / 2 rows). Then a probe of one to three "
    "graph replays; over 1.4 times the best it gets one. The best five of each sketch and launch kind and the peers "
    "take turns in random order, first for 0.1 s that is not counted, then over 12 or more rounds; a round is one "
    "replay of a CUDA graph of back-to-back launches over rotating input sets of four times L2 together (at most 64 "
    "sets; cache says warm where that is less than twice L2), CUDA events round it. The winner is chosen on the first "
    "third of the rounds, latency_s and ratios (median of paired ratios, 95 % bootstrap interval) come from the "
    "others; then it is checked again. Prebuilt cubins: trials counts the candidates tried, wall_s what the shape's "
    "race took, compilation excluded. roof_fraction: max(bytes once / 4.3 TB/s, flops / roof) over latency_s, roof "
    "1500 TFLOP/s for float8, 790 for bfloat16."
)


class Log:
    """What the logs say, by index of the race's entries; a later log's final replaces an earlier one's."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.environments: list[Row] = []
        self.tried: dict[int, dict[str, Row]] = collections.defaultdict(dict)
        self.finals: dict[int, Row] = {}
        self.walls: dict[int, float] = {}
        self.lost: list[Row] = []
        self.refused: dict[int, dict[str, str]] = collections.defaultdict(dict)
        for path in paths:
            self._read(path)

    def _read(self, path: Path) -> None:
        begun: dict[int, float] = {}
        for text in path.read_text().splitlines():
            line = json.loads(text)
            index = line.get("i", -1)
            if "environment" in line:
                self.environments.append(line["environment"])
            elif "ended" in line:
                self.lost.append({"i": line["shape"], "candidate": line["start"], "ended": line["ended"]})
            elif "shape" in line:
                begun[index] = line["t"]
            elif "tried" in line:
                self.tried[index][line["tried"]] = line
            elif "peer" in line:
                self.refused[index][line["peer"]] = line["refused"]
            elif "final" in line:
                self.finals[index] = line
            elif "done" in line and index in begun:
                self.walls[index] = line["t"] - begun[index]


def make_rows(log: Log, index: int, suite: str, w: GemmWorkload, chosen: Sequence[Any]) -> list[Row]:
    """One row for each sketch and launch kind that reached the final, fastest first."""
    final, by = log.finals[index], {c.key: c for c in chosen}
    name, rows = BASELINE[suite], []
    for entry in sorted(final["final"], key=lambda e: e["latency_s"]):
        roof = max(w.min_bytes() / ROOF_BYTES_PER_S, w.flops() / ROOF_FLOPS_PER_S[w.dtype_a])
        row: Row = {
            "suite": suite, **w.to_json(), "dtype": w.dtype_a, "latency_s": entry["latency_s"],
            "baselines": final["baselines"],
            "cache": "cold" if final["cold"] else "warm", "launch": entry["launch"],
            "roof_fraction": round(roof / entry["latency_s"], 4), "trials": len(log.tried[index]),
            "wall_s": round(log.walls.get(index, 0.0), 2), "sketch": entry["sketch"],
            "knobs": by[entry["candidate"]].knobs, "max_rel_err": entry["max_rel_err"],
            "ratios": {peer: [round(x, 4) for x in ratio] for peer, ratio in entry["ratios"].items()},
        }  # fmt: skip
        if name in final["baselines"]:
            ratio, low, high = row["ratios"][name]
            row |= {"baseline": {"name": name, "latency_s": final["baselines"][name]},
                    "ratio": ratio, "ratio_ci95": [low, high]}  # fmt: skip
        rows.append(row)
    return rows


def collect(log: Log) -> dict[str, tuple[list[Row], list[Row], list[Row]]]:
    """suite -> (headline rows: the fastest one launched as the baseline is; with dependent launch; other sketches)."""
    found: dict[str, tuple[list[Row], list[Row], list[Row]]] = {}
    for index, (suite, w, chosen) in enumerate(race_entries()):
        if index not in log.finals or suite == "checks":
            continue
        head, dependent, others = found.setdefault(suite, ([], [], []))
        rows = make_rows(log, index, suite, w, chosen)
        for launch, target in (("stream", head), ("dependent", dependent)):
            of_launch = [r for r in rows if r["launch"] == launch]
            target += of_launch[:1]
            others += of_launch[1:]
    return found


def mean(rows: Sequence[Row]) -> float | None:
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 4) if ratios else None


def show(row: Row) -> str:
    shape = (f"{row['groups']}x" if "groups" in row else "") + f"{row['m']}x{row['n']}x{row['k']}"
    peers = " ".join(f"{name} {x[0]:.3f} [{x[1]:.3f},{x[2]:.3f}]" for name, x in row["ratios"].items())
    knobs = ",".join(str(v) for v in row["knobs"].values())
    layout = "nt" if row.get("trans_b") else "nn"
    return (f"{row['suite']} {layout} {shape} {row['launch'][:3]} {row['latency_s'] * 1e6:.2f}us roof "
            f"{row['roof_fraction']:.2f} {peers} {row['sketch'][10:]} {knobs}")  # fmt: skip


def checked(log: Log, sketches: Sequence[str] = ()) -> Row:
    """How many candidates (of `sketches`; of all without) were right, over all shapes and those only checked."""
    outcomes: collections.Counter[str] = collections.Counter()
    wrong = []
    for index, (_, w, chosen) in enumerate(race_entries()):
        for candidate in chosen:
            line = log.tried.get(index, {}).get(candidate.key)
            if line is not None and (not sketches or candidate.sketch in sketches):
                outcomes[line["outcome"]] += 1
                if line["outcome"] != "OK":
                    wrong.append([w.to_json(), candidate.to_json(), line["outcome"]])
    return {
        "candidates_tried": sum(outcomes.values()),
        "candidates_right": outcomes["OK"],
        "candidates_not_right": wrong,
    }


def write(log: Log, found: dict[str, tuple[list[Row], list[Row], list[Row]]]) -> None:
    last = log.environments[-1]
    environment = {
        "device": last.get("device"), "driver": last.get("nvidia_smi", {}).get("driver_version"),
        "cuda": last.get("cuda"), "torch": last.get("torch"), "cores": last.get("cores"), "sittings": log.environments,
    }  # fmt: skip
    for name, suites in FILES.items():
        parts = [found[s] for s in suites if s in found]
        if not parts:
            continue
        entries = race_entries()
        missing = [
            [w.groups, w.m, w.n, w.k, w.scales]
            for i, (s, w, _) in enumerate(entries)
            if s in suites and i not in log.finals
        ]
        summary: Row = {f"geomean_{s}": mean(found[s][0]) for s in suites if s in found}
        summary |= {f"geomean_dependent_launch_{s}": mean(found[s][1]) for s in suites if s in found}
        file = ResultFile(name, PROTOCOL, environment, command=COMMAND)
        file.rows = [row for part in parts for row in part[0]]
        file.tables = {
            "dependent_launch": [row for part in parts for row in part[1]],
            "other_sketches": [row for part in parts for row in part[2]],
            "peers_that_refused": [
                {"m": entries[i][1].m, "n": entries[i][1].n, "k": entries[i][1].k, **refused}
                for i, refused in log.refused.items() if entries[i][0] in suites
            ],
            "not_timed": missing,
        }  # fmt: skip
        sketches = sorted({row["sketch"] for part in parts for rows in part for row in rows})
        file.summary = {**summary, **checked(log, sketches), "children_lost": len(log.lost)}
        print(file.write())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    log = Log(args.logs)
    found = collect(log)
    for head, dependent, _ in found.values():
        for row in (*head, *dependent):
            print(show(row))
    for suite, (head, dependent, _) in found.items():
        print(suite, "geomean", mean(head), "dependent", mean(dependent))
    print(json.dumps(checked(log))[:1500], "lost", log.lost)
    for index, refused in log.refused.items():
        print("refused", index, refused)
    if args.write:
        write(log, found)


if __name__ == "__main__":
    main()
