"""Numbers and nouns as the pages write them. Pure; escaping is the templates' business."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

_SHORT_DTYPE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3": "fp8"}
NONE = "–"

OUTCOME_WORDS: Mapping[str, str] = {
    "OK": "valid",
    "LOWER_ERROR": "not lowered",
    "BUILD_ERROR": "build failed",
    "BUILD_TIMEOUT": "build timed out",
    "RUN_ERROR": "crashed",
    "RUN_TIMEOUT": "run timed out",
    "OUT_OF_MEMORY": "out of memory",
    "WRONG_ANSWER": "wrong answer",
    "WORKER_LOST": "worker lost",
}
STOP_WORDS: Mapping[str, str] = {
    "trials": "all trials used",
    "time": "time used",
    "space_exhausted": "whole space tried",
    "no_improvement": "no further gain",
    "near_roofline": "near the roofline",
    "cancelled": "cancelled",
    "no_valid_candidate": "no valid candidate",
}


def seconds(value: float | None) -> str:
    """A kernel's time with three digits and the unit that suits: 14.3 µs."""
    if value is None or not math.isfinite(value) or value <= 0:
        return NONE
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if value >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value * 1e9:.3g} ns"


def rate(tflops: float | None) -> str:
    if tflops is None:
        return NONE
    if tflops >= 1:
        return f"{_three_digits(tflops)} TFLOP/s"
    return f"{_three_digits(tflops * 1e3)} GFLOP/s"


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 3)}f}"


def duration(value: float | None) -> str:
    """Wall time: 8 s, 2 min 05 s, 1 h 10 min."""
    if value is None:
        return NONE
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def ago(then: datetime, now: datetime) -> str:
    passed = max(0.0, (now - then).total_seconds())
    if passed < 5:
        return "just now"
    if passed < 60:
        return f"{passed:.0f} s ago"
    if passed < 3600:
        return f"{passed / 60:.0f} min ago"
    if passed < 86400:
        return f"{passed / 3600:.0f} h ago"
    return f"{then.astimezone(UTC):%Y-%m-%d}"


def knobs(values: Mapping[str, object]) -> str:
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()
    )


def workload(data: Mapping[str, object]) -> str:
    """One line that tells a workload from its neighbours: GEMM 16 × 6144 × 4096 bf16 Bᵀ."""
    op = data.get("op")
    if op == "gemm":
        return _gemm(data)
    if op == "attention":
        return _attention(data)
    return " ".join([str(op), *(f"{name}={value}" for name, value in data.items() if name != "op")])


def _gemm(data: Mapping[str, object]) -> str:
    dtypes = [_SHORT_DTYPE.get(str(data[n]), str(data[n])) for n in ("dtype_a", "dtype_b", "dtype_out")]
    words = ["GEMM", f"{data['m']} × {data['n']} × {data['k']}"]
    if "batch" in data:
        words.insert(1, f"{data['batch']} ×")
    words.append(dtypes[0] if len(set(dtypes)) == 1 else "/".join(dtypes))
    words += [
        mark for name, mark in (("trans_a", "Aᵀ"), ("trans_b", "Bᵀ"), ("b_constant", "weights")) if data.get(name)
    ]
    words += [f"{name} {data[name]}" for name in ("groups", "scales") if name in data]
    if "epilogue" in data:
        words.append(str(data["epilogue"]))
    return " ".join(words)


def _attention(data: Mapping[str, object]) -> str:
    heads = f"{data['heads_q']}" if data["heads_q"] == data["heads_kv"] else f"{data['heads_q']}/{data['heads_kv']}"
    lengths = f"{data['seq_q']}" if data["seq_q"] == data["seq_kv"] else f"{data['seq_q']}→{data['seq_kv']}"
    words = ["Attention", f"{heads} heads", f"{lengths} tokens", f"d{data['head_dim']}"]
    words.append(_SHORT_DTYPE.get(str(data["dtype"]), str(data["dtype"])))
    if "batch" in data:
        words.insert(1, f"batch {data['batch']},")
    words += [name for name in ("causal", "lse", "deterministic") if data.get(name)]
    shown = {
        "heads_q",
        "heads_kv",
        "seq_q",
        "seq_kv",
        "head_dim",
        "dtype",
        "batch",
        "causal",
        "lse",
        "deterministic",
        "op",
    }
    words += [
        f"{name} {value}"
        for name, value in data.items()
        if name not in shown and not (name == "head_dim_v" and value == data["head_dim"])
    ]
    return " ".join(words)


def target(data: Mapping[str, object]) -> str:
    words = [str(data["kind"])] + [str(data[n]) for n in ("arch", "model") if data.get(n)]
    if data.get("cores"):
        words.append(f"{data['cores']} cores")
    return " ".join(words)
