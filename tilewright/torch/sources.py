"""Where the operators' schedules come from: a folder of `tilewright export`, or a service."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.artifact import ArtifactError, ForeignArtifact
from tilewright.runtime.loader import load
from tilewright.torch.constants import CONSTANTS
from tilewright.torch.table import TABLE, Entry, key_of
from tilewright.torch.tally import Counts, Key, Miss


class ScheduleSkipped(UserWarning):
    """A schedule of the source is not served; the message says which and why. Its calls run torch's kernel."""


@dataclass(frozen=True)
class _Listed:
    """One schedule of a source; `read` gives the artifact's bytes."""

    name: str
    device: str
    workload: Mapping[str, Any]
    served: str
    digest: str
    read: Callable[[], bytes]


def use(source: str | Path, key: str | None = None) -> int:
    """Serve what `source` holds: a folder written by `tilewright export --job`, or a server's URL (with its bearer
    `key`), read once here and never during a call. Returns how many shapes are served, replacing those before.

    A schedule that is stale on the server, or built for another machine, is left out with a ScheduleSkipped warning.
    Raises FileNotFoundError for a folder without an index, ArtifactError for what is damaged; the table then stays.
    """
    text = str(source)
    listed = _from_server(text, key) if text.startswith(("http://", "https://")) else _from_folder(Path(source))
    entries: dict[tuple[str, Key], Entry] = {}
    for schedule in listed:
        place = (schedule.device, key_of(schedule.workload))
        if place not in entries and (entry := _entry(schedule)) is not None:
            entries[place] = entry
    TABLE.replace(entries)
    CONSTANTS.clear()
    return len(entries)


def clear() -> None:
    """Serve nothing: every call runs torch's kernel. The counts start again."""
    TABLE.replace({})
    CONSTANTS.clear()
    TABLE.tallies.reset()


def counts() -> Counts:
    """How the calls since the start (or `clear`) were served."""
    return TABLE.tallies.counts()


def misses() -> tuple[Miss, ...]:
    """Calls since the start (or `clear`) that ran torch's kernel for want of a schedule, most called first."""
    return TABLE.tallies.misses()


def submit_misses(
    url: str, key: str | None = None, *, trials: int = 64, name: str = "missed shapes", **job: object
) -> list[dict[str, Any]]:
    """Submit the shapes missed for want of a schedule to a service, weighted by their calls; one job for each kind of
    device, `trials` for each shape. `job`: further fields of POST /v1/jobs. Returns the jobs, [] without such misses.

    Raises ApiError where the service refuses one (the message names the task), Unreachable.
    """
    from tilewright.client import Client

    by_device: dict[str, list[dict[str, object]]] = {}
    for miss in misses():
        if miss.tunable:
            by_device.setdefault(miss.device, []).append({"workload": dict(miss.workload), "weight": miss.calls})
    if not by_device:
        return []
    with Client(url, key) as client:
        return [
            client.submit(
                {"name": name, "target": {"kind": device}, "tasks": tasks, "max_trials": trials * len(tasks), **job}
            )
            for device, tasks in sorted(by_device.items())
        ]


def _entry(schedule: _Listed) -> Entry | None:
    if schedule.served == "vendor":
        return Entry(None)
    try:
        return Entry(load(schedule.read(), digest=schedule.digest))
    except ForeignArtifact as fault:
        _skip(schedule.name, schedule.workload, str(fault))
        return None


def _skip(name: str, workload: Mapping[str, Any], why: str) -> None:
    shape = " ".join(f"{field}={value}" for field, value in workload.items())
    warnings.warn(f"schedule {name} ({shape}) is not served: {why}", ScheduleSkipped, stacklevel=4)


def _from_folder(folder: Path) -> list[_Listed]:
    index = folder / "index.json"
    try:
        listing = json.loads(index.read_text(encoding="utf-8"))
        return [_listed(folder, s) for s in listing["schedules"]]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} has no index.json: write it with `tilewright export --job JOB --out DIR`"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ArtifactError(f"{index} is damaged ({type(fault).__name__}: {fault}): export it again") from None


def _listed(folder: Path, s: Mapping[str, Any]) -> _Listed:
    workload, device = dict(s["workload"]), str(s["target"]["kind"])
    return _Listed(str(s["id"]), device, workload, s["served"], s["artifact"], partial(_read, folder / str(s["file"])))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise ArtifactError(f"{file} cannot be read ({fault.strerror}): export it again") from None


def _from_server(url: str, key: str | None) -> Iterator[_Listed]:
    """Of every completed job, newest first: what a newer job promoted wins."""
    from tilewright.client import ApiError, Client

    with Client(url, key) as client:
        seen: set[tuple[str, Key]] = set()
        for job in client.pages("/v1/jobs", {"state": "completed", "limit": 100}):
            for task in client.job(job["id"])["tasks"]:
                kind = (task.get("target") or {}).get("kind")
                place = (str(kind), key_of(task["workload"]))
                if kind is None or place in seen or not task.get("best"):
                    continue
                seen.add(place)
                try:
                    best = client.best(task["workload"], target=kind)
                except ApiError as fault:
                    if fault.code not in ("stale", "untuned"):
                        raise
                    _skip(str(task.get("schedule_id")), task["workload"], str(fault))
                    continue
                s = best["schedule"]
                read = partial(client.artifact, s["id"])
                yield _Listed(s["id"], s["target"]["kind"], s["workload"], best["served"]["kind"], s["artifact"], read)
