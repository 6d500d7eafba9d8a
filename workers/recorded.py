"""Answers from stored records instead of a device: one JSON object a line, with `workload`, `candidate` and
`measurement` as those nouns write themselves; a line with `baseline` (a measurement) in place of a candidate gives
the vendor's. The latest line of a candidate wins."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from search_space.candidate import Candidate
from search_space.errors import InvalidField
from search_space.registry import all_sketches  # noqa: F401  registers the ops
from search_space.workload import parse_workload
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from workers.script import BUILD_OUTCOMES, BadScript, Entry
from workers.scripted_devices import ScriptedDevice


@dataclass(frozen=True)
class Recorded:
    """`entries` by (workload key, candidate key), `vendors` by workload key."""

    entries: Mapping[tuple[str, str], Entry]
    vendors: Mapping[str, Entry]
    devices: tuple[ScriptedDevice, ...] = ()

    def entry(self, workload_key: str, candidate: Candidate, ordinal: int | None) -> Entry:
        unknown = Entry(outcome=Outcome.RUN_ERROR, message=f"no record of candidate {candidate.key} in the file")
        return self.entries.get((workload_key, candidate.key), unknown)

    def baseline(self, workload_key: str) -> Entry:
        unknown = Entry(outcome=Outcome.RUN_ERROR, message="no record of the vendor's kernel in the file")
        return self.vendors.get(workload_key, unknown)


def load_recorded(path: Path) -> Recorded:
    """Raises BadScript naming the file, the line and what is wrong with it."""
    entries: dict[tuple[str, str], Entry] = {}
    vendors: dict[str, Entry] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        raise BadScript(f"{path}: cannot be read: {fault.strerror}") from fault
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            _line(json.loads(line), entries, vendors)
        except (InvalidField, ValueError, KeyError, TypeError, AssertionError) as fault:
            raise BadScript(f"{path}, line {number}: {type(fault).__name__}: {fault}") from fault
    if not entries:
        raise BadScript(f"{path}: holds no record")
    return Recorded(entries, vendors)


def _line(data: Mapping[str, object], entries: dict[tuple[str, str], Entry], vendors: dict[str, Entry]) -> None:
    workload = parse_workload(data["workload"])
    if "baseline" in data:
        vendors[workload.key] = _of(data["baseline"])
        return
    candidate = data["candidate"]
    if not isinstance(candidate, Mapping):
        raise InvalidField("candidate", "must be an object")
    entries[workload.key, Candidate.from_json(candidate).key] = _of(data["measurement"])


def _of(data: object) -> Entry:
    if not isinstance(data, Mapping):
        raise InvalidField("measurement", "must be an object")
    measurement = Measurement.from_json(data)
    return Entry(
        latency_s=measurement.latency_s or 0.0,
        outcome=measurement.outcome,
        message=measurement.error or "",
        stage="build" if measurement.outcome in BUILD_OUTCOMES else "run",
    )
