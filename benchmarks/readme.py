"""Writes what the result files of docs/results/ say into the README (headlines) and docs/results.md (every row):
`python -m benchmarks.readme` (`--check` only compares).
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paired import geometric_mean
from benchmarks.result_file import RESULTS, ROOT
from tilewright.cli.show import describe_workload, seconds

BEGIN, END = "<!-- results: python -m benchmarks.readme -->", "<!-- end of results -->"
_GEMM = "m n k batch dtype_a dtype_b dtype_out trans_a trans_b epilogue b_constant groups grouping scales"
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
    ]
    tables = document["tables"]
    if tables.get("packed_ahead"):
        packed = geometric_mean([row["ratio"] for row in tables["packed_ahead"]])
        lines.append(f"Weights packed ahead of time: {packed:.2f}.")
    if tables.get("stability"):
        seeds, spread = tables["stability"]["seeds"], tables["stability"]["largest_spread"]
        lines.append(f"Winners of {seeds} searches with different seeds, measured again together: within {spread:.1%}.")
    return lines


def comparison(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of kernels beside the fastest of their peers."""
    lines = [
        "| workload | ours | best peer | peer / ours [95 %] | share of the roof | trials | found by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "-" if row.get("roof_fraction") is None else f"{row['roof_fraction']:.2f}"
        peer = row["baseline"]
        times = f"{seconds(row['latency_s'])} | {peer['name']} {seconds(peer['latency_s'])}"
        found = f"{row.get('trials') or '-'} | {row.get('sketch') or '-'}"
        lines.append(f"| {workload(row)} | {times} | {ratio(row)} | {share} | {found} |")
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


SECTIONS: tuple[tuple[str, str, Callable[[Document], list[str]]], ...] = (
    ("cpu", "CPU, found by the search, beside torch", cpu),
    ("service", "The service", service),
    ("h200_search", "Found by the search on an H200, beside the vendor's kernels", summary_lines),
    ("h200_gemm", "GEMM on an H200, beside cuBLAS", summary_lines),
    ("h200_gemm_small", "GEMV on an H200, beside cuBLAS", summary_lines),
    ("h200_gemm_fp8", "float8 GEMM on an H200, beside torch._scaled_mm", summary_lines),
    ("h200_gemm_grouped", "Grouped GEMM on an H200, beside torch._grouped_mm", summary_lines),
    ("h200_attention", "Attention on an H200, beside cuDNN, FlashAttention-2 and -3", summary_lines),
    ("h200_decode", "Decode attention on an H200, beside cuDNN, FlashAttention-2 and -3", summary_lines),
    ("search", "The search on recorded measurements", summary_lines),
)
COMPARED = frozenset({"latency_s", "baseline", "ratio", "ratio_ci95"})  # what a row of a comparison holds
IN_README = frozenset({"cpu"})  # the tables that stand there too
PAGES: tuple[tuple[Path, Collection[str] | None], ...] = (
    (ROOT / "README.md", IN_README),
    (ROOT / "docs" / "results.md", None),
)


def known(folder: Path) -> list[tuple[str, str, Callable[[Document], list[str]]]]:
    """The sections, and one for every other result file."""
    named = {name for name, _, _ in SECTIONS}
    others = sorted(p.stem for p in folder.glob("*.json") if p.stem not in named)
    return [*SECTIONS, *((name, name.replace("_", " "), summary_lines) for name in others)]


def render(folder: Path = RESULTS, tables: Collection[str] | None = IN_README) -> str:
    """The block between the markers, from the result files that exist: headlines, and the rows of the files in
    `tables` (None: of all)."""
    out = [BEGIN]
    for name, title, lines in known(folder):
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        out += ["", f"### {title}", source(name, document), "", *lines(document)]
        compared = [row for row in document["rows"] if row.keys() >= COMPARED]
        if compared and (tables is None or name in tables):
            out += ["", *comparison(compared)]
    return "\n".join([*out, "", END])


def updated(page: Path, tables: Collection[str] | None) -> str:
    """The page with the block between its markers as the result files have it."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return before + render(tables=tables) + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a page differs from the result files")
    options = parser.parse_args()
    differ = False
    for page, tables in PAGES:
        wanted = updated(page, tables)
        differ |= wanted != page.read_text(encoding="utf-8")
        if not options.check:
            page.write_text(wanted, encoding="utf-8")
    return int(options.check and differ)


if __name__ == "__main__":
    sys.exit(main())
