"""Writes schedules as files that run anywhere without the service, and shows what is in them.

DIR/index.json                    what `tilewright.torch.use(DIR)` reads
DIR/NAME/kernel.tilewright        the artifact: what `tilewright.load` reads
DIR/NAME/schedule.json            workload, knobs, target, and what was measured
DIR/NAME/kernel.so (or .cubin)    the code, for other callers
DIR/NAME/kernel.tir.py, kernel.s  the program as TIR script, and its machine code, to read
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tilewright.runtime import Artifact, digest_of
from tilewright.runtime.artifact import ASSEMBLY, SCRIPT
from tilewright.runtime.loader import ARTIFACT_SUFFIX

INDEX = "index.json"
_ARTIFACT = "kernel" + ARTIFACT_SUFFIX
_NAME_FIELDS = ("batch", "m", "n", "k", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim")


class ScheduleSource(Protocol):
    """The half of `tilewright.client.Client` that exporting needs."""

    def job(self, job_id: str) -> dict[str, Any]: ...

    def schedule(self, schedule_id: str) -> dict[str, Any]: ...

    def artifact(self, schedule_id: str) -> bytes: ...


class NothingToExport(LookupError):
    """The job has no promoted schedule (yet)."""


def export_schedules(
    client: ScheduleSource, out: Path, schedule_id: str | None = None, job_id: str | None = None
) -> Iterator[Path]:
    """Write one schedule, or all winners of a job, into `out`; yields the folder of each, then the index.

    Folders of an earlier export stay, its index is replaced. Raises NothingToExport, ArtifactError where the service's
    artifact is damaged, ValueError unless exactly one of the two ids is given.
    """
    if (schedule_id is None) == (job_id is None):
        raise ValueError("give either a schedule or a job")
    ids = [schedule_id] if schedule_id is not None else _winners(client, str(job_id))
    entries = []
    for one in ids:
        detail = client.schedule(str(one))
        folder, entry = write_schedule(out, detail, client.artifact(str(one)))
        entries.append(entry)
        yield folder
    index = out / INDEX
    _write(index, json.dumps({"schema": 1, "schedules": entries}, indent=1).encode())
    yield index


def write_schedule(out: Path, detail: Mapping[str, Any], blob: bytes) -> tuple[Path, dict[str, object]]:
    """One schedule's folder, and its entry in the index. `detail` is the service's answer for the schedule."""
    schedule = detail["schedule"]
    artifact = Artifact.from_bytes(blob, schedule["artifact"])
    folder = out / folder_name(schedule["workload"], schedule["artifact"])
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _ARTIFACT, blob)
    for name, data in artifact.files.items():
        _write(folder / Path(name).name, data)
    _write(folder / "schedule.json", json.dumps({**detail, "manifest": artifact.manifest}, indent=1).encode())
    entry = {
        "id": schedule["id"],
        "workload": schedule["workload"],
        "file": f"{folder.name}/{_ARTIFACT}",
        "artifact": digest_of(blob),
        "served": detail["served"]["kind"],
        "target": schedule["target"],
        "environment": detail["environment"],
    }
    return folder, entry


def folder_name(workload: Mapping[str, Any], digest: str) -> str:
    """Readable and unique: ``gemm-m16-n4096-k4096-float32-9f2b6c01``."""
    parts = [str(workload["op"]), *(f"{f}{workload[f]}" for f in _NAME_FIELDS if f in workload)]
    parts.append(str(workload.get("dtype") or workload.get("dtype_a")))
    return "-".join([*parts, digest[:8]])


def describe_artifact(blob: bytes, assembly: bool = True) -> str:
    """What was built, for reading: candidate, TIR script, and the machine code where wanted."""
    artifact = Artifact.from_bytes(blob)
    facts = {name: artifact.manifest.get(name) for name in ("kind", "workload", "candidate", "target", "environment")}
    parts = [f"# {name}: {json.dumps(value, sort_keys=True)}" for name, value in facts.items()]
    for title, name in (("TIR", SCRIPT), *((("assembly", ASSEMBLY),) if assembly else ())):
        text = artifact.text(name)
        parts += ["", f"# {title}", text.rstrip() if text is not None else "(not in this artifact)"]
    return "\n".join(parts)


def _winners(client: ScheduleSource, job_id: str) -> list[str]:
    tasks = client.job(job_id)["tasks"]
    ids = [str(task["schedule_id"]) for task in tasks if task.get("schedule_id")]
    if not ids:
        raise NothingToExport(f"job {job_id} has no promoted schedule")
    return ids


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_bytes(data)
    beside.replace(path)
