"""From the race's log to `tables.backward` of docs/results/h200_attention.json."""

import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_backward import candidates
from benchmarks.paired import geometric_mean, paired_ratio
from benchmarks.result_file import RESULTS, command_line, commit
from search_space.attention import AttentionWorkload

PEERS = ("cudnn", "fa2")
_CHOOSING = 4  # rounds that choose the candidate; its ratios are of the others
PROTOCOL = (
    "Every kernel is first checked on seven ragged, grouped and causal cases in both layouts against float64 "
    "autograd (outputs poisoned by NaN; relative error by norm under 0.012, the largest under 0.03 of the largest "
    "value; twice the same bits where deterministic), each in a process of its own; on the timed shape against "
    "FlashAttention-2 (norm under 0.02). Then 12 rounds: candidates and peers in random order, each called back "
    "to back for 4 ms between two events, gradients alone (torch: autograd.grad of a kept forward; ours: its "
    "three kernels). Four rounds choose the candidate, the other eight give its ratios, paired within rounds; 95 "
    "% bootstrap intervals of the median. Operands are 0.4 GB together, so L2 is cold. FLOP: 10 for each visible "
    "pair and element of head_dim."
)


def report(log: Path, results: Path = RESULTS) -> dict[str, Any]:
    """Writes the table; returns it. `log`: what the race printed, or its rows as kept (.gz). ValueError: no rows."""
    rows = [_row(entry) for entry in _entries(log)]
    if not rows:
        raise ValueError(f"{log} holds no timed shape")
    table = {
        "command": command_line(),
        "commit": commit(),
        "protocol": PROTOCOL,
        "rows": rows,
        "summary": _summary(rows),
        "not_run": "flash-attn-4, head_dim 256",
    }
    path = results / "h200_attention.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["tables"]["backward"] = table
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return table


def _entries(log: Path) -> list[Mapping[str, Any]]:
    found = []
    data = log.read_bytes()
    text = (gzip.decompress(data) if log.suffix == ".gz" else data).decode()
    for line in text.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            if "secs" in entry:
                found.append(entry)
    return found


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    w = AttentionWorkload.from_json(entry["workload"])
    secs: Mapping[str, Sequence[float]] = entry["secs"]
    ours = [n for n in secs if n not in PEERS and not n.endswith("_det")]
    exact = [n for n in secs if n.endswith("_det")]

    def best(names: Sequence[str]) -> str:
        return min(names, key=lambda n: statistics.median(secs[n][:_CHOOSING]))

    def latency(name: str) -> float:
        return statistics.median(secs[name][_CHOOSING:])

    mine, peers = best(ours), [p for p in PEERS if p in secs]
    rival = min(peers, key=latency)
    ratio, interval = paired_ratio(secs[rival][_CHOOSING:], secs[mine][_CHOOSING:])
    _, candidate = candidates()[mine]
    return {
        "suite": "fa_paper_grid",
        **{k: v for k, v in w.to_json().items() if k != "op"},
        "latency_s": latency(mine),
        "tflops": round(w.flops() / latency(mine) / 1e12, 1),
        "baselines": {p: latency(p) for p in peers},
        "baseline": {"name": rival, "latency_s": latency(rival)},
        "ratio": round(ratio, 4),
        "ratio_ci95": [round(x, 4) for x in interval],
        "deterministic_latency_s": latency(best(exact)) if exact else None,
        "trials": len(ours) + len(exact),
        "wall_s": round(entry["wall_s"], 2),
        "sketch": candidate.sketch,
        "knobs": dict(candidate.knobs),
        "wrong": entry["wrong"],
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(chosen: Sequence[Mapping[str, Any]], peer: str | None = None) -> float:
        values = [r["ratio"] if peer is None else r["baselines"][peer] / r["latency_s"] for r in chosen]
        return round(geometric_mean(values), 4)

    slower = [r["deterministic_latency_s"] / r["latency_s"] for r in rows if r["deterministic_latency_s"]]
    return {
        "shapes": len(rows),
        "geomean_vs_best": mean(rows),
        **{f"geomean_vs_{p}": mean(rows, p) for p in PEERS},
        "geomean_vs_best_by": {
            f"d{dim} {'causal' if causal else 'full'}": mean(chosen)
            for dim in (64, 128)
            for causal in (False, True)
            if (chosen := [r for r in rows if r["head_dim"] == dim and r.get("causal", False) == causal])
        },
        "surely_under_0.97": sum(r["ratio_ci95"][1] < 0.97 for r in rows),
        "deterministic_over_not": round(geometric_mean(slower), 4) if slower else None,
    }
