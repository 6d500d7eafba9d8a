"""Records as JSON lines, to move them between places and to replay a search without a device.

Each line is ``{"workload", "target", "candidate", "measurement"}``, each as its noun's `to_json` writes it; a line
with ``"baseline"`` (a measurement) in place of the candidate is the vendor's. A measurer that answers from records
reads the same file.
"""

import json
from collections.abc import Iterable, Mapping

from search_space.candidate import Candidate
from search_space.errors import InvalidField
from search_space.target import Target
from search_space.workload import parse_workload
from tuner.measurement import Measurement
from tuner.task import Task, TuningRecord


class BadRecords(ValueError):
    """A line that is no record; the message names the line and what is wrong with it."""


def to_line(record: TuningRecord) -> str:
    data = {
        "workload": record.task.workload.to_json(),
        "target": record.task.target.to_json(),
        "candidate": record.candidate.to_json(),
        "measurement": record.measurement.to_json(),
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def parse_lines(lines: Iterable[str]) -> dict[Task, list[TuningRecord]]:
    """Records by task, in the order of the lines; the latest line of a candidate wins, baselines are left out. Raises
    BadRecords. The ops must be registered (search_space.registry)."""
    found: dict[Task, dict[Candidate, TuningRecord]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _parse(json.loads(line))
        except (InvalidField, ValueError, KeyError, TypeError, AssertionError) as fault:
            raise BadRecords(f"line {number}: {type(fault).__name__}: {fault}") from fault
        if record is not None:
            found.setdefault(record.task, {})[record.candidate] = record
    return {task: list(records.values()) for task, records in found.items()}


def _parse(data: Mapping[str, object]) -> TuningRecord | None:
    if "baseline" in data:
        return None
    target, candidate, measurement = (_object(data, n) for n in ("target", "candidate", "measurement"))
    task = Task(parse_workload(data["workload"]), Target.from_json(target))
    return TuningRecord(task, Candidate.from_json(candidate), 0, 0, Measurement.from_json(measurement), "recorded")


def _object(data: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = data[name]
    if not isinstance(value, Mapping):
        raise InvalidField(name, f"must be an object, not {type(value).__name__}")
    return value
