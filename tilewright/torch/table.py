"""What the operators serve: a table from a call's shape to a loaded kernel, filled once by `use`."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.artifact import ArtifactError
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.loader import load

# A call's shape: the workload's canonical JSON as sorted (name, value) pairs.
Key = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Counts:
    """Calls by how they were served, and the shapes that were missed."""

    tuned: int
    vendor: int
    missed: int
    missed_shapes: Mapping[Key, int]


@dataclass(frozen=True)
class Entry:
    """`kernel` is None where the vendor's kernel was the faster one."""

    kernel: Kernel | None


class Table:
    """Thread-safe for calls; `replace` swaps the whole table."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._lock = threading.Lock()
        self._served: Counter[str] = Counter()
        self._missed: Counter[Key] = Counter()

    def replace(self, entries: Mapping[Key, Entry]) -> None:
        self._entries = dict(entries)

    def find(self, key: Key) -> Kernel | None:
        """The kernel for the shape, or None: then torch is to run. Counted either way."""
        entry = self._entries.get(key)
        with self._lock:
            if entry is None:
                self._missed[key] += 1
            self._served["missed" if entry is None else "vendor" if entry.kernel is None else "tuned"] += 1
        return None if entry is None else entry.kernel

    def counts(self) -> Counts:
        with self._lock:
            s = self._served
            return Counts(s["tuned"], s["vendor"], s["missed"], dict(self._missed))

    def reset_counts(self) -> None:
        with self._lock:
            self._served.clear()
            self._missed.clear()


TABLE = Table()


def use(source: str | Path, key: str | None = None) -> int:
    """Serve what `source` holds: a folder written by `tilewright export --job`, or a server's URL (with its bearer
    `key`), read once here and never during a call. Returns how many shapes are served, replacing those before.

    Raises FileNotFoundError for a folder without an index, ArtifactError for a damaged or foreign artifact.
    """
    text = str(source)
    entries = _from_server(text, key) if text.startswith(("http://", "https://")) else _from_folder(Path(source))
    TABLE.replace(entries)
    return len(entries)


def clear() -> None:
    """Serve nothing: every call runs torch's kernel. The counts start again."""
    TABLE.replace({})
    TABLE.reset_counts()


def counts() -> Counts:
    """How the calls since the start (or `clear`) were served."""
    return TABLE.counts()


def key_of(workload: Mapping[str, object]) -> Key:
    return tuple(sorted(workload.items()))


def _from_folder(folder: Path) -> dict[Key, Entry]:
    index = folder / "index.json"
    try:
        listing = json.loads(index.read_text(encoding="utf-8"))
        schedules = [(key_of(s["workload"]), s, s["served"], s["artifact"], s["file"]) for s in listing["schedules"]]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} has no index.json: write it with `tilewright export --job JOB --out DIR`"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ArtifactError(f"{index} is damaged ({type(fault).__name__}: {fault}): export it again") from None
    return {key: _entry(s, partial(_read, folder / str(file))) for key, s, *_, file in schedules}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as fault:
        raise ArtifactError(f"{file} cannot be read ({fault.strerror}): export it again") from None


def _entry(schedule: Mapping[str, Any], read: Callable[[], bytes]) -> Entry:
    if schedule["served"] == "vendor":
        return Entry(None)
    return Entry(load(read(), digest=schedule["artifact"]))


def _from_server(url: str, key: str | None) -> dict[Key, Entry]:
    from tilewright.client import Client

    with Client(url, key) as client:
        jobs = client.pages("/v1/jobs", {"state": "completed", "limit": 100})
        found: dict[Key, Entry] = {}
        for job in jobs:  # newest first: what a newer job promoted wins
            for task in job["tasks"]:
                shape = key_of(task["workload"])
                if shape in found or not task.get("best"):
                    continue
                best = client.best(task["workload"])
                schedule = {"served": best["served"]["kind"], "artifact": best["schedule"]["artifact"]}
                found[shape] = _entry(schedule, partial(client.artifact, best["schedule"]["id"]))
    return found
