"""Human-readable views of what the API answers."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Json = Mapping[str, Any]


def describe_workload(workload: Json) -> str:
    """One line: the shape first, then what differs from the plain case."""
    w = dict(workload)
    op = w.pop("op", "?")
    if op == "gemm":
        shape = f"{w.pop('m', '?')}x{w.pop('n', '?')}x{w.pop('k', '?')}"
        a, b, out = (w.pop(f"dtype_{s}", None) for s in ("a", "b", "out"))
        dtype = a if a == b == out else f"{a}*{b}->{out}"
        head = f"gemm {shape} {dtype}"
    else:
        heads = f"{w.pop('heads_q', '?')}/{w.pop('heads_kv', '?')}"
        lengths = f"{w.pop('seq_q', '?')}x{w.pop('seq_kv', '?')}"
        dims = f"{w.pop('head_dim', '?')}/{w.pop('head_dim_v', '?')}"
        head = f"attention heads {heads} seq {lengths} dim {dims} {w.pop('dtype', '')}"
    rest = " ".join(k if v is True else f"{k}={v}" for k, v in sorted(w.items()) if v is not False)
    return f"{head} {rest}".strip()


def seconds(value: float | None) -> str:
    """A time with three digits and the unit that suits it."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def rate(tflops: float | None) -> str:
    if tflops is None:
        return "-"
    return f"{tflops:.3g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.3g} GFLOP/s"


def speedup(best: Json) -> str:
    """The ratio to the vendor's kernel with its 95 % interval: without it a busy host's figure looks like any other."""
    ratio, interval = best.get("speedup_vs_baseline"), best.get("speedup_ci95")
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def knobs_text(knobs: Json) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(knobs.items()))


def best_table(console: Console, best: Json) -> None:
    """The answer to `tilewright best`."""
    schedule, baseline = best["schedule"], best.get("baseline") or {}
    table = Table(title=describe_workload(schedule["workload"]), show_header=False, title_justify="left")
    table.add_row("schedule", str(schedule["id"]))
    table.add_row("sketch", f"{schedule['sketch']} ({knobs_text(schedule['knobs'])})")
    table.add_row("latency", f"{seconds(best.get('latency_s'))}, {rate(best.get('tflops'))}")
    if baseline:
        table.add_row(str(baseline.get("name")), seconds(baseline.get("latency_s")))
    table.add_row("speedup", speedup(best))
    roofline = best.get("roofline") or {}
    if roofline.get("fraction") is not None:
        table.add_row("roofline", f"{roofline['fraction']:.2f} of the {roofline['bound']} roof")
    table.add_row("run", str((best.get("served") or {}).get("kind")))
    if best.get("exact") is False:
        table.add_row("nearest", f"predicted {seconds(best.get('predicted_latency_s'))}")
    console.print(table)


def job_table(console: Console, job: Json) -> None:
    """What a job found, one row a task."""
    table = Table(title=f"{job['id']}: {job['state']} ({job.get('stop_reason') or '-'})", title_justify="left")
    for column in ("task", "trials", "best", "rate", "speedup", "roofline"):
        table.add_column(column)
    for task in job["tasks"]:
        best = task.get("best") or {}
        fraction = best.get("roofline_fraction")
        table.add_row(
            describe_workload(task["workload"]),
            str(task["trials"]),
            seconds(best.get("latency_s")),
            rate(best.get("tflops")),
            speedup(best),
            "-" if fraction is None else f"{fraction:.2f}",
        )
    console.print(table)
    trials = job["trials"]
    failed = ", ".join(f"{k} {v}" for k, v in trials.get("failed_by", {}).items() if v) or "none"
    console.print(f"{trials['done']} trials, {trials['ok']} valid; failed: {failed}")
    if job.get("error"):
        console.print(f"error: {job['error']['code']}: {job['error']['message']}", markup=False)
