"""From the logs of `benchmarks.h200_attention race` to the result file and the compact records."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_attention_candidates import kernels, race_entries, suite_of
from benchmarks.paired import geometric_mean
from benchmarks.records import Recorded, write_records
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from tuner.outcome import Outcome

# What this card was seen to reach on random data (H200): roof_fraction is a share of it.
ROOF_BYTES_PER_S = 4.3e12
ROOF_FLOPS_PER_S = 7.9e14
PEERS = ("cudnn", "fa2", "fa3")
PROTOCOL = (
    "Every kernel is first checked on 17 ragged, grouped, short and causal cases in both layouts against float64 "
    "(outputs poisoned by NaN and guarded, two launches each, rows that see nothing give 0 and LSE -inf); every "
    "candidate is checked the same way on the timed shape against float32, before timing, and the winner again after: "
    "|O - ref| <= (u + 2e-4) P|V| + u |ref|, u half an ulp of the 16-bit type. A probe of one to three replays of a "
    "CUDA graph (about 2 ms of back-to-back launches over operands larger than L2 together) picks twelve, six "
    "interleaved rounds pick four; these and the peers then take turns in random order over 30 rounds, 3 ms of rest "
    "before each replay (the card is at its power limit: without it a hungry kernel slows its successor; "
    "ratios_sustained are 12 more rounds without rest). The winner is chosen on the first 10, latency_s and the "
    "ratios (median of paired ratios peer / ours, 95 % bootstrap interval) come from the other 20. Peers: torch SDPA "
    "with cuDNN and with FlashAttention-2, and fa3-fwd 0.0.3 (FlashAttention-3). Prebuilt cubins with run-time batch, "
    "heads and lengths: trials counts the candidates tried on the shape, wall_s all that its race took, compilation "
    "excluded. roof_fraction: max(flops / 790 TFLOP/s, bytes / 4.3 TB/s) / latency_s."
)
Row = dict[str, Any]


class Log:
    """What the logs say of each shape; a later log's final replaces an earlier one's."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.environment: list[Row] = []
        self.date = ""
        self.tried: dict[int, dict[str, Row]] = {}
        self.finals: dict[int, Row] = {}
        self.walls: dict[int, float] = {}
        self.checks: dict[str, Row] = {}
        self.lost: list[Row] = []
        self.served: Row | None = None
        for path in paths:
            for text in path.read_text().splitlines():
                self._read(json.loads(text))

    def _read(self, line: Row) -> None:
        index = line.get("i", -1)
        if "environment" in line:
            self.environment.append(line["environment"])
            self.date = line["date"]
        elif "ended" in line:
            self.lost.append({"shape": line["shape"], "candidate": line["start"], "ended": line["ended"]})
        elif "served" in line:
            self.served = {"right": line["served"], "max_rel_err": line["max_rel_err"]}
        elif "check" in line:
            self.checks[line["check"]] = line
        elif "tried" in line:
            self.tried.setdefault(index, {})[line["tried"]] = line
        elif "final" in line:
            self.finals[index] = line
        elif "done" in line:
            self.walls[index] = line["wall_s"]


def roof_fraction(w: AttentionWorkload, latency_s: float) -> float:
    return max(w.min_bytes() / ROOF_BYTES_PER_S, w.flops() / ROOF_FLOPS_PER_S) / latency_s


def make_row(w: AttentionWorkload, log: Log, index: int, by: dict[str, Candidate]) -> Row | None:
    final = log.finals.get(index)
    if final is None or not final["right_after"]:
        return None
    candidate, peers = by[final["final"]], final["peers_s"]
    best = min(peers, key=lambda name: peers[name])
    ratio, low, high = final["ratios"][best]
    latency = final["latency_s"]
    shown = {k: v for k, v in w.to_json().items() if k != "op"}
    return {
        "suite": suite_of(w), **shown, "causal": w.causal, "batch": w.batch, "pass": w.pass_, "latency_s": latency,
        "tflops": round(w.flops() / latency * 1e-12, 1), "baselines": peers,
        "baseline": {"name": best, "latency_s": peers[best]},
        "ratio": round(ratio, 4), "ratio_ci95": [round(low, 4), round(high, 4)],
        "ratios": {n: [round(x, 4) for x in final["ratios"][n]] for n in peers},
        "ratios_sustained": {n: [round(x, 4) for x in final["sustained"][n]] for n in peers},
        "roof_fraction": round(roof_fraction(w, latency), 4), "cache": "cold", "launch": "stream",
        "trials": len(log.tried.get(index, {})), "wall_s": round(log.walls.get(index, 0.0), 2),
        "sketch": candidate.sketch, "knobs": candidate.knobs, "max_rel_err": final["max_rel_err"],
        "peer_max_rel_err": final["peer_errors"],
    }  # fmt: skip


def summarise(rows: Sequence[Row]) -> Row:
    def mean(chosen: Iterable[Row], peer: str | None = None) -> float | None:
        values = [r["ratios"][peer][0] if peer else r["ratio"] for r in chosen if peer is None or peer in r["ratios"]]
        return round(geometric_mean(values), 4) if values else None

    grid = [r for r in rows if r["suite"] == "fa_paper_grid"]
    hot = [min(r["ratios_sustained"][p][0] for p in r["ratios_sustained"]) for r in grid]
    groups = sorted({(r["head_dim"], r["causal"]) for r in grid})
    worst = min(rows, key=lambda r: r["ratio"], default=None)
    return {
        "shapes_timed": len(rows),
        "shapes_expected": len(race_entries()),
        "geomean_vs_best": mean(grid),
        **{f"geomean_vs_{peer}": mean(grid, peer) for peer in PEERS},
        "geomean_vs_best_sustained": round(geometric_mean(hot), 4) if hot else None,
        "geomean_vs_best_by": {
            f"d{d} {'causal' if c else 'full'}": mean(r for r in grid if (r["head_dim"], r["causal"]) == (d, c))
            for d, c in groups
        },
        "geomean_vs_fa3_by": {
            f"d{d} {'causal' if c else 'full'}": mean(
                (r for r in grid if (r["head_dim"], r["causal"]) == (d, c)), "fa3"
            )
            for d, c in groups
        },
        "worst_vs_best": None if worst is None else _named(worst),
        "surely_under_0.98": [_named(r) for r in rows if r["ratio_ci95"][1] < 0.98],
    }


def _named(r: Row) -> Row:
    names = ("head_dim", "causal", "batch", "heads_q", "heads_kv", "seq_q", "ratio")
    return {**{n: r[n] for n in names}, "baseline": r["baseline"]["name"]}


def ablation(log: Log, knob: str, values: tuple[object, object]) -> Row:
    """Per (head_dim, causal): geometric mean over the shapes of best probe with values[0] / best with values[1]."""
    found: dict[str, list[float]] = {}
    for index, (w, chosen) in enumerate(race_entries()):
        tried = log.tried.get(index, {})
        best: dict[object, float] = {}
        for candidate in chosen:
            line = tried.get(candidate.key, {})
            if line.get("outcome") == "OK" and (value := candidate.knobs[knob]) in values:
                probe = sorted(line["run_secs"])[len(line["run_secs"]) // 2]
                best[value] = min(best.get(value, float("inf")), probe)
        if len(best) == 2:
            group = f"d{w.head_dim} {'causal' if w.causal else 'full'}"
            found.setdefault(group, []).append(best[values[0]] / best[values[1]])
    return {group: round(geometric_mean(ratios), 4) for group, ratios in found.items()}


def write(logs: Sequence[Path], out: Path, records: Path) -> None:
    log = Log(logs)
    rows: list[Row] = []
    recorded: list[Recorded] = []
    for index, (w, chosen) in enumerate(race_entries()):
        by = {c.key: c for c in chosen}
        if (row := make_row(w, log, index, by)) is not None:
            rows.append(row)
        for key, line in log.tried.get(index, {}).items():
            if key in by:
                times = tuple(line.get("run_secs", ()))
                recorded.append(Recorded(w, by[key], Outcome(line["outcome"]), times, line.get("max_rel_err")))
    knob_values: dict[str, tuple[object, object]] = {
        "pv_wait": ("early", "late"), "overlap": (False, True), "pingpong": (False, True), "lazy": (0, 8),
        "diagonal": ("mask", "skip"), "schedule": ("static", "dynamic"), "rescale": ("after", "under"),
    }  # fmt: skip
    names = {key: candidate.knobs for key, (_, candidate) in kernels().items()}
    wrong = [{"knobs": names.get(key), "cases": line["wrong"]} for key, line in log.checks.items() if line["wrong"]]
    result = {
        "command": "python -m benchmarks.h200_attention_emit DIR; python -m benchmarks.h200_attention compile DIR; "
        "python -m benchmarks.h200_attention race DIR --out LOG; python -m benchmarks.h200_attention report LOG",
        "date": log.date,
        "commit": _commit(),
        "environment": {"sittings": log.environment},
        "protocol": PROTOCOL,
        "rows": rows,
        "tables": {
            "ablation_best_probe_of_first_over_second": {
                f"{knob}: {a} / {b}": ablation(log, knob, (a, b)) for knob, (a, b) in knob_values.items()
            },
            "kernels_checked": {
                "kernels": len(log.checks),
                "right": sum(not line["wrong"] for line in log.checks.values()),
                "largest_rel_err": max((line["max_rel_err"] or 0.0 for line in log.checks.values()), default=None),
                "wrong": wrong,
            },
            "through_the_loader_on_a_side_stream": log.served,
            "lost_children": log.lost,
            "not_timed": [i for i in range(len(race_entries())) if i not in log.finals],
        },
        "summary": {
            **summarise(rows),
            "candidates_tried": len(recorded),
            "candidates_right": sum(r.outcome is Outcome.OK for r in recorded),
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    write_records(records, recorded, {"sittings": log.environment})
    print(json.dumps(result["summary"], indent=1))


def _commit() -> str:
    ran = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"
