"""Writes the README's tables of results from docs/results/: `python -m benchmarks.readme` (`--check` only compares)."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.paired import geometric_mean
from benchmarks.result_file import RESULTS, ROOT
from tilewright.cli.show import describe_workload, seconds

BEGIN, END = "<!-- results: python -m benchmarks.readme -->", "<!-- end of results -->"
_GEMM = "m n k batch dtype_a dtype_b dtype_out trans_a trans_b epilogue b_constant"
_ATTENTION = "heads_q heads_kv seq_q seq_kv head_dim head_dim_v causal layout pass"
FIELDS = frozenset(f"op dtype {_GEMM} {_ATTENTION}".split(" "))
Document = Mapping[str, Any]


def source(name: str, document: Document) -> str:
    environment = document["environment"]
    device = environment.get("device") or environment.get("cpu")
    return f"`docs/results/{name}.json`, {document['date'][:10]}, {device}: `{document['command']}`"


def ratio(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_ci95"]
    return f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def workload(row: Mapping[str, Any]) -> str:
    return describe_workload({k: v for k, v in row.items() if k in FIELDS})


def cpu(document: Document) -> list[str]:
    summary = document["summary"]
    plain = [row["ratio"] for row in document["rows"] if "float32" in (row.get("dtype"), row.get("dtype_a"))]
    mean, worst = summary["geometric_mean"], summary["worst"]
    lines = [
        f"Geometric mean over torch {geometric_mean(plain):.2f} in the {len(plain)} float32 rows; worst {worst:.2f}.",
        f"With bfloat16, for which torch has no fast kernel without AVX512-BF16: {mean:.2f}.",
        "",
        "| workload | ours | torch | torch / ours [95 %] | share of the roof | trials | found by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        share = "-" if row["roof_fraction"] is None else f"{row['roof_fraction']:.2f}"
        times = f"{seconds(row['latency_s'])} | {seconds(row['baseline']['latency_s'])}"
        lines.append(f"| {workload(row)} | {times} | {ratio(row)} | {share} | {row['trials']} | {row['sketch']} |")
    return lines


def service(document: Document) -> list[str]:
    tables = document["tables"]
    best, status = tables["best"], tables["status_while_building"]
    lookups = f"p50 {best['p50_ms']:.1f} ms, p99 {best['p99_ms']:.1f} ms"
    text = (
        f"On {tables['records']:,} records, from a second process: best-schedule queries {lookups}; job status while a "
        f"job is built p99 {status['p99_ms']:.0f} ms; the HTTP process takes {tables['api_resident_mib']:.0f} MiB."
    )
    return [text]


def summary_lines(document: Document) -> list[str]:
    """Every figure of the summary, as the benchmark wrote it."""
    lines = ["| figure | value |", "|---|---|"]
    for name, value in document["summary"].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            lines.append(f"| {name.replace('_', ' ')} | {text} |")
        elif isinstance(value, list):
            lines.append(f"| {name.replace('_', ' ')} | {len(value)} shapes (listed in the file) |")
    return lines


def attention(document: Document) -> list[str]:
    lines = [*summary_lines(document), "", "| workload | ours | best peer | peer / ours [95 %] |", "|---|---|---|---|"]
    for row in document["rows"]:
        peer = f"{row['baseline']['name']} {seconds(row['baseline']['latency_s'])}"
        lines.append(f"| {workload(row)} | {seconds(row['latency_s'])} | {peer} | {ratio(row)} |")
    return lines


SECTIONS: tuple[tuple[str, str, Callable[[Document], list[str]]], ...] = (
    ("cpu", "CPU, found by the search, beside torch", cpu),
    ("service", "The service", service),
    ("h200_gemm", "GEMM on an H200, beside cuBLAS", summary_lines),
    ("h200_attention", "Attention on an H200, beside cuDNN, FlashAttention-2 and -3", attention),
    ("search", "The search on recorded measurements", summary_lines),
)


def render(folder: Path = RESULTS) -> str:
    """The block between the markers, from the result files that exist."""
    out = [BEGIN]
    for name, title, lines in SECTIONS:
        path = folder / f"{name}.json"
        if path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            out += ["", f"### {title}", source(name, document), "", *lines(document)]
    return "\n".join([*out, "", END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the README differs from the result files")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = before + render() + after
    if options.check:
        return int(wanted != text)
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
