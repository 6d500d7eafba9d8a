"""Reads a list of workloads: a csv of shapes (one op a file), a JSON job body, or a model's configuration."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from tilewright.cli.model_config import BadModel, is_model_config, tasks_of_model

_SHAPE = "batch m n k groups heads_q heads_kv seq_q seq_kv head_dim head_dim_v window_left window_right"
_INTEGERS = frozenset(_SHAPE.split(" "))
_FLAGS = frozenset(["trans_a", "trans_b", "causal", "b_constant", "lse", "deterministic"])
_TEXTS = frozenset(["dtype", "dtype_out", "epilogue", "layout", "kv_layout", "grouping", "scales", "pass", "op"])
_NUMBERS = frozenset(["softcap", "scale"])


class BadSuite(ValueError):
    """The file cannot be read as a list of workloads; the message names the line and the column."""


def read_suite(path: Path) -> list[dict[str, object]]:
    """Tasks ({"workload": ..., "weight": ...}) of a .csv or .json file, in file order, doubles merged by weight.

    A csv has the columns of a workload's JSON fields; others (model, layer, source, ...) are ignored. A file with a
    column `m` holds GEMMs, one with `seq_q` attention. A JSON file is a job body with "tasks", a list of
    workloads, or a model's configuration (see `model_config`).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadSuite(f"{path}: {fault}") from None
    try:
        tasks = _from_json(path, text) if path.suffix == ".json" else _from_csv(path, text)
    except csv.Error as fault:
        raise BadSuite(f"{path}: {fault}") from None
    if not tasks:
        raise BadSuite(f"{path}: no workload in it")
    return _merged(tasks)


def _from_json(path: Path, text: str) -> list[dict[str, object]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadSuite(f"{path}: {fault}") from None
    if is_model_config(data):
        try:
            return tasks_of_model(data)
        except BadModel as fault:
            raise BadSuite(f"{path}: {fault}") from None
    if isinstance(data, Mapping) and isinstance(models := data.get("models"), Mapping):
        raise BadSuite(f"{path}: holds the models {', '.join(map(str, models))}: give the entry of one in its own file")
    items = data.get("tasks") if isinstance(data, Mapping) else data
    if not isinstance(items, list):
        raise BadSuite(f'{path}: needs a list of workloads, an object with "tasks", or a model\'s configuration')
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise BadSuite(f"{path}: task {number} is not an object")
    return [dict(i) if "workload" in i else {"workload": i} for i in items]


def _from_csv(path: Path, text: str) -> list[dict[str, object]]:
    reader = csv.DictReader(text.splitlines())
    columns = set(reader.fieldnames or ())
    op = "gemm" if {"m", "n", "k"} <= columns else "attention" if {"seq_q", "head_dim"} <= columns else None
    if op is None:
        raise BadSuite(f"{path}: needs the columns m, n, k or seq_q, head_dim")
    return [{"workload": {"op": op, **_row(path, number, row)}} for number, row in enumerate(reader, 2)]


def _row(path: Path, line: int, row: Mapping[str, str | None]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, text in row.items():
        if not text or name is None:
            continue
        try:
            if name in _INTEGERS:
                out[name] = int(text)
            elif name in _NUMBERS:
                out[name] = float(text)
            elif name in _FLAGS:
                out[name] = {"0": False, "1": True, "false": False, "true": True}[text.lower()]
            elif name in _TEXTS:
                out[name] = text
        except (ValueError, KeyError):
            raise BadSuite(f"{path} line {line}, column {name}: cannot read {text!r}") from None
    return out


def _merged(tasks: list[dict[str, object]]) -> list[dict[str, object]]:
    """One task a workload: a layer that a model runs 32 times weighs 32."""
    seen: dict[str, dict[str, object]] = {}
    for task in tasks:
        key = json.dumps(task["workload"], sort_keys=True)
        weight = task.get("weight", 1.0)
        if key in seen and isinstance(weight, (int, float)):
            old = seen[key].get("weight", 1.0)
            seen[key]["weight"] = (old if isinstance(old, (int, float)) else 1.0) + weight
        else:
            seen[key] = {**task, "weight": weight}
    return list(seen.values())
