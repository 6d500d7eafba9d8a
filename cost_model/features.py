"""Named, versioned features of one choice: sketch, knobs, workload and target, as plain numbers.

A feature that does not apply (another sketch's knob, a cache level that the target does not state, a rate that nobody
measured) is left out of the mapping; in a matrix it is NaN, which XGBoost treats as missing and sends along each
split's default branch (Chen and Guestrin, arXiv:1603.02754 section 3.4). Infinities never get in.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_space.knob import Knobs
from search_space.sketch import Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

FEATURE_VERSION = 1

# What this module adds to a sketch's own features. Families such as ``knob.*`` are open: a new knob is a new column.
BASE_NAMES = (
    "balance.l1",
    "balance.l2",
    "balance.l3",
    "balance.memory",
    "knob.*",
    "log_bytes.l1",
    "log_bytes.l2",
    "log_bytes.l3",
    "log_bytes.memory",
    "log_flops",
    "log_footprint",
    "log_min_bytes",
    "log_size.*",
    "over.l1",
    "over.l2",
    "over.l3",
    "parallel.per_core",
    "parallel.waste",
    "redundancy.memory",
    "resource.registers",
    "resource.shared_share",
    "resource.threads",
    "resource.workspace_share",
    "roofline.compute_share",
    "roofline.predicted_log_time",
    "roofline.predicted_over_roof",
    "sketch.*",
    "target.cores",
    "target.log_l1",
    "target.log_l2",
    "target.log_l3",
    "target.log_shared",
    "target.vector_bits",
    "workload.*",
)

FEATURE_SCHEMA = f"{FEATURE_VERSION}-{hashlib.sha256(','.join(BASE_NAMES).encode()).hexdigest()[:12]}"

# Families whose absence means 0 and not "unknown": one-hot columns.
_ONE_HOT_MARK = "="
_ONE_HOT_PREFIXES = ("sketch.",)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rates:
    """Peak rates of the device as plain numbers: FLOP/s and bytes/s (of the level that bounds the workload)."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class TaskContext:
    """What all candidates of one workload on one target share, worked out once: thousands are ranked in a round."""

    workload: Workload
    target: Target
    rates: Rates | None
    shared: Mapping[str, float]
    flops: int
    min_bytes: int
    footprint: int

    @staticmethod
    def of(workload: Workload, target: Target, rates: Rates | None = None) -> "TaskContext":
        return TaskContext(
            workload,
            target,
            rates,
            _finite({**_of_workload(workload), **_of_target(target)}),
            workload.flops(),
            workload.min_bytes(),
            workload.footprint_bytes(),
        )

    def featurise(self, sketch: Sketch, knobs: Knobs) -> dict[str, float]:
        """name -> finite number: what all share and the choice's own. Deterministic."""
        return {**self.shared, **self.own(sketch, knobs)}

    def own(self, sketch: Sketch, knobs: Knobs) -> dict[str, float]:
        """The features of the choice alone; names a sketch states win over names made up here."""
        traffic = sketch.traffic(self.workload, self.target, knobs)
        return _finite(
            {
                **_named_values("knob", knobs),
                **_of_traffic(self, traffic),
                **_of_caches(self, traffic),
                **_of_resources(self, sketch.resources(self.workload, self.target, knobs)),
                **_of_roofline(self, traffic),
                f"sketch.{sketch.name}": 1.0,
                **sketch.features(self.workload, self.target, knobs),
            }
        )


def to_matrix(
    rows: Sequence[Mapping[str, float]], names: Sequence[str], shared: Mapping[str, float] | None = None
) -> NDArray[np.float32]:
    """Rows as float32 [len(rows), len(names)]; a missing name is NaN, or 0 in a one-hot family. `shared` holds what
    every row has unless it says otherwise."""
    column = {name: i for i, name in enumerate(names)}
    base = np.array([0.0 if _is_one_hot(name) else np.nan for name in names], dtype=np.float32)
    _fill(base, shared or {}, column)
    matrix = np.tile(base, (len(rows), 1))
    for out, row in zip(matrix, rows, strict=True):
        _fill(out, row, column)
    return matrix


def _fill(out: NDArray[np.float32], row: Mapping[str, float], column: Mapping[str, int]) -> None:
    known = [(column[n], v) for n, v in row.items() if n in column and abs(v) <= _FLOAT32_MAX]  # no NaN, no infinity
    if known:
        places, values = zip(*known, strict=True)
        out[list(places)] = values


def column_names(rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Every name that some row has, sorted."""
    return tuple(sorted({name for row in rows for name in row}))


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _is_one_hot(name: str) -> bool:
    return _ONE_HOT_MARK in name or name.startswith(_ONE_HOT_PREFIXES)


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


def _named_values(prefix: str, values: Mapping[str, object]) -> dict[str, float]:
    """Numbers as they are, a string as a one-hot column ``prefix.name=value``."""
    out: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, str):
            out[f"{prefix}.{name}{_ONE_HOT_MARK}{value}"] = 1.0
        elif isinstance(value, bool | int | float):
            out[f"{prefix}.{name}"] = float(value)
    return out


def _of_workload(workload: Workload) -> dict[str, float]:
    data = workload.to_json()
    sizes = {n: v for n, v in data.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0}
    rest = {n: v for n, v in data.items() if n not in sizes}
    out = _named_values("workload", rest)
    out.update({f"log_size.{name}": math.log2(value) for name, value in sizes.items()})
    out["log_flops"] = _log2(workload.flops())
    out["log_min_bytes"] = _log2(workload.min_bytes())
    out["log_footprint"] = _log2(workload.footprint_bytes())
    return out


def _of_target(target: Target) -> dict[str, float]:
    return {
        "target.cores": float(target.cores),
        "target.vector_bits": float(target.vector_bits),
        "target.log_l1": _log2(target.l1_bytes),
        "target.log_l2": _log2(target.l2_bytes),
        "target.log_l3": _log2(target.l3_bytes),
        "target.log_shared": _log2(target.shared_bytes),
    }


def _levels(traffic: Traffic) -> dict[str, float]:
    return {
        "memory": traffic.memory_bytes,
        "l3": traffic.l3_bytes,
        "l2": traffic.l2_bytes,
        "l1": traffic.l1_bytes,
    }


def _of_traffic(task: TaskContext, traffic: Traffic) -> dict[str, float]:
    """Bytes and arithmetic intensity (log2 FLOP per byte) at each level that the sketch states."""
    out: dict[str, float] = {}
    for level, size in _levels(traffic).items():
        out[f"log_bytes.{level}"] = _log2(size)
        out[f"balance.{level}"] = _log2(_ratio(task.flops, size))
    out["redundancy.memory"] = _ratio(traffic.memory_bytes, task.min_bytes)
    return out


def _of_caches(task: TaskContext, traffic: Traffic) -> dict[str, float]:
    """How often the data that a level serves would fill it, log2: the working set over the level's size."""
    sizes = {"l1": task.target.l1_bytes, "l2": task.target.l2_bytes, "l3": task.target.l3_bytes}
    needs = {"l1": traffic.l2_bytes, "l2": traffic.l3_bytes, "l3": float(task.footprint)}
    return {f"over.{level}": _log2(_ratio(needs[level], size)) for level, size in sizes.items()}


def _of_resources(task: TaskContext, resources: Resources) -> dict[str, float]:
    target = task.target
    out = {
        "resource.registers": float(resources.registers),
        "resource.threads": float(resources.threads),
        "resource.shared_share": _ratio(resources.shared_bytes, target.shared_bytes),
        "resource.workspace_share": _ratio(resources.workspace_bytes, task.footprint),
    }
    if target.kind == "cpu":  # on a GPU `threads` are a block's, and the grid is the sketch's to tell
        grains = max(resources.threads, 1)
        waves = math.ceil(grains / target.cores)
        out["parallel.per_core"] = grains / target.cores
        out["parallel.waste"] = 1.0 - grains / (waves * target.cores)  # idle share of the last wave's cores
    return out


def _of_roofline(task: TaskContext, traffic: Traffic) -> dict[str, float]:
    """The roofline model (Williams et al., CACM 52(4), 2009) on the predicted traffic, against the fewest bytes."""
    rates = task.rates
    if rates is None or rates.flops_per_s <= 0 or rates.bytes_per_s <= 0:
        return {}
    compute = task.flops / rates.flops_per_s
    predicted = max(compute, traffic.memory_bytes / rates.bytes_per_s)
    roof = max(compute, task.min_bytes / rates.bytes_per_s)
    return {
        "roofline.predicted_log_time": _log2(predicted),
        "roofline.predicted_over_roof": _ratio(predicted, roof),
        "roofline.compute_share": _ratio(compute, predicted),
    }
