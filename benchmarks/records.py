"""Recorded measurements, compact: gzip of JSON lines that a search can be replayed on.

Line kinds: {"environment": ...}; {"candidate": {sketch, version, knobs}, "id": i}; {"workload": {...}, "id": j};
{"w": j, "c": i, "o": outcome, "us": [microseconds a call], "e": relative error by norm}.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_space import attention as _attention  # noqa: F401  registers the op
from search_space import gemm as _gemm  # noqa: F401  registers the op
from search_space.candidate import Candidate
from search_space.workload import Workload, parse_workload
from tuner.outcome import Outcome


@dataclass(frozen=True)
class Recorded:
    """One attempt at one candidate. `run_secs` is empty unless the outcome is OK."""

    workload: Workload
    candidate: Candidate
    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    max_rel_err: float | None = None


def write_records(path: Path, records: Iterable[Recorded], environment: Mapping[str, object]) -> None:
    """The same records give the same bytes."""
    workloads: dict[str, int] = {}
    candidates: dict[str, int] = {}
    lines = [json.dumps({"environment": environment}, sort_keys=True)]
    for r in records:
        if r.workload.key not in workloads:
            workloads[r.workload.key] = len(workloads)
            lines.append(json.dumps({"workload": r.workload.to_json(), "id": workloads[r.workload.key]}))
        if r.candidate.key not in candidates:
            candidates[r.candidate.key] = len(candidates)
            lines.append(json.dumps({"candidate": r.candidate.to_json(), "id": candidates[r.candidate.key]}))
        at, chosen = workloads[r.workload.key], candidates[r.candidate.key]
        line: dict[str, object] = {"w": at, "c": chosen, "o": r.outcome.value}
        if r.run_secs:
            line["us"] = [round(t * 1e6, 3) for t in r.run_secs]
        if r.max_rel_err is not None:
            line["e"] = float(f"{r.max_rel_err:.2e}")
        lines.append(json.dumps(line, separators=(",", ":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


def read_records(path: Path) -> Iterator[Recorded]:
    """Raises KeyError or ValueError on a file that write_records did not write."""
    workloads: dict[int, Workload] = {}
    candidates: dict[int, Candidate] = {}
    for text in gzip.decompress(path.read_bytes()).decode().splitlines():
        line = json.loads(text)
        if "workload" in line:
            workloads[line["id"]] = parse_workload(line["workload"])
        elif "candidate" in line:
            candidates[line["id"]] = Candidate.from_json(line["candidate"])
        elif "w" in line:
            times = tuple(us * 1e-6 for us in line.get("us", ()))
            yield Recorded(workloads[line["w"]], candidates[line["c"]], Outcome(line["o"]), times, line.get("e"))
