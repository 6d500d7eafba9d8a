"""From the logs of `benchmarks.h200_decode race` to the result file and the compact records."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_attention_report import Log, Row
from benchmarks.h200_decode_candidates import checks, race_entries
from benchmarks.paired import geometric_mean
from benchmarks.records import Recorded, write_records
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from tuner.outcome import Outcome

# What this card was seen to read at most (H200): roof_fraction is a share of it.
ROOF_BYTES_PER_S = 4.4e12
SMALL_BYTES, LARGE_BYTES = 64_000_000, 200_000_000
PEERS = ("cudnn", "fa2", "fa3")
PROTOCOL = (
    "Every kind of kernel is first checked on ragged extents in both layouts against float64 (outputs poisoned by NaN "
    "and guarded, workspace poisoned, two launches to the same bits, rows that see nothing give 0 and LSE -inf; "
    "adversarial and random inputs), and every candidate on the timed shape against float32 before timing; the winner "
    "again after. A CUDA graph of about 2 ms of back-to-back launches goes round over input sets of more than twice L2 "
    "together (at most 24 sets). Three replays pick ten candidates, six interleaved rounds pick four; these and the "
    "peers take turns in random order over 30 rounds. The winner is chosen on the first 10, latency_s and the ratios "
    "(median of paired ratios peer / ours, 95 % bootstrap interval) come from the other 20. Peers, on the same "
    "[batch, seq, heads, dim] tensors: torch SDPA with cuDNN and with FlashAttention-2 (enable_gqa), and fa3-fwd 0.0.3 "
    "(FlashAttention-3, num_splits=0: its own heuristic). Prebuilt cubins with run-time batch, heads and lengths: "
    "trials counts the candidates tried on the shape, wall_s all that its race took, compilation excluded. "
    "roof_fraction: operand bytes / 4.4 TB/s / latency_s."
)


def make_row(w: AttentionWorkload, log: Log, index: int, by: dict[str, Candidate]) -> Row | None:
    final = log.finals.get(index)
    if final is None or not final["right_after"] or final["final"] not in by:
        return None
    candidate, peers, latency = by[final["final"]], final["peers_s"], final["latency_s"]
    best = min(peers, key=lambda name: peers[name])
    ratio, low, high = final["ratios"][best]
    return {
        "suite": "decode", **{k: v for k, v in w.to_json().items() if k != "op"}, "batch": w.batch,
        "mbytes": round(w.min_bytes() * 1e-6, 1), "latency_s": latency,
        "tbytes_per_s": round(w.min_bytes() / latency * 1e-12, 3), "baselines": peers,
        "baseline": {"name": best, "latency_s": peers[best]},
        "ratio": round(ratio, 4), "ratio_ci95": [round(low, 4), round(high, 4)],
        "ratios": {n: [round(x, 4) for x in final["ratios"][n]] for n in peers},
        "roof_fraction": round(w.min_bytes() / ROOF_BYTES_PER_S / latency, 4),
        "cache": "cold" if final["sets"] * w.min_bytes() > 60 << 20 else "warm", "launch": "stream",
        "trials": len(log.tried.get(index, {})), "wall_s": round(log.walls.get(index, 0.0), 2),
        "sketch": candidate.sketch, "knobs": candidate.knobs, "max_rel_err": final["max_rel_err"],
        "peer_max_rel_err": final["peer_errors"],
    }  # fmt: skip


def _named(r: Row) -> Row:
    names = ("batch", "heads_q", "heads_kv", "seq_kv", "head_dim", "mbytes", "ratio", "roof_fraction")
    return {**{n: r[n] for n in names}, "baseline": r["baseline"]["name"]}


def summarise(rows: Sequence[Row]) -> Row:
    def mean(values: Sequence[float]) -> float | None:
        return round(geometric_mean(values), 4) if values else None

    small = [r for r in rows if r["mbytes"] * 1e6 < SMALL_BYTES]
    large = [r for r in rows if r["mbytes"] * 1e6 > LARGE_BYTES]
    return {
        "shapes_timed": len(rows),
        "shapes_expected": len(race_entries()),
        "geomean_vs_best": mean([r["ratio"] for r in rows]),
        **{f"geomean_vs_{n}": mean([r["ratios"][n][0] for r in rows if n in r["ratios"]]) for n in PEERS},
        "under_64_mb": {"shapes": len(small), "geomean_vs_best": mean([r["ratio"] for r in small])},
        "over_200_mb": {
            "shapes": len(large),
            "geomean_vs_best": mean([r["ratio"] for r in large]),
            "geomean_roof_fraction": mean([r["roof_fraction"] for r in large]),
            "least_roof_fraction": min((r["roof_fraction"] for r in large), default=None),
        },
        "worst_vs_best": _named(min(rows, key=lambda r: r["ratio"])) if rows else None,
        "surely_under_1": [_named(r) for r in rows if r["ratio_ci95"][1] < 1.0],
    }


def knob_table(log: Log, knob: str) -> dict[str, dict[str, float]]:
    """Per head_dim and value: geometric mean over the shapes of (best probe with the value) / (best probe of all)."""
    found: dict[str, dict[str, list[float]]] = {}
    for index, (w, chosen) in enumerate(race_entries()):
        best: dict[str, float] = {}
        for c in chosen:
            line = log.tried.get(index, {}).get(c.key, {})
            if line.get("outcome") == "OK":
                probe = sorted(line["run_secs"])[len(line["run_secs"]) // 2]
                value = str(c.knobs[knob])
                best[value] = min(best.get(value, float("inf")), probe)
        for value, probe in best.items():
            found.setdefault(f"d{w.head_dim}", {}).setdefault(value, []).append(probe / min(best.values()))
    return {d: {v: round(geometric_mean(r), 4) for v, r in values.items()} for d, values in found.items()}


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
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    result: dict[str, Any] = {
        "command": "python -m benchmarks.h200_attention_emit DIR --decode; python -m benchmarks.h200_decode compile "
        "DIR; python -m benchmarks.h200_decode race DIR --out LOG; python -m benchmarks.h200_decode report LOG",
        "date": log.date,
        "commit": commit or "unknown",
        "environment": {"sittings": log.environment},
        "protocol": PROTOCOL,
        "rows": rows,
        "tables": {
            "best_with_value_over_best": {
                k: knob_table(log, k)
                for k in ("warps", "warp_keys", "blocks_per_sm", "q_in", "waves", "schedule", "dependent")
                for k in ("warps", "warp_keys", "blocks_per_sm", "q_in", "waves", "schedule", "dependent")
            },
            "kinds_checked": {
                name: {"cases": line["cases"], "wrong": line["wrong"]} for name, line in log.checks.items()
            },
            "kinds_not_checked": [c.name for c in checks() if c.name not in log.checks],
            "lost_children": log.lost,
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
