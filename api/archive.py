"""One file that carries records and winners from site to site: a zip of one JSON document a job, the winners'
artifacts, and a manifest with the format's version and the SHA-256 of every member.

manifest.json                {"format", "version", "made_at", "jobs", "records", "members": {name: {"sha256", "bytes"}}}
jobs/JOB.json                as `db.travel` writes it
artifacts/SHA256             the bytes

Whole or not at all: everything is checked before the first row is written; then each job is one transaction, and a job
that is there already is passed by. So an import that was cut off is simply done again.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

FORMAT, VERSION = "tilewright archive", 1
MANIFEST = "manifest.json"
MAX_MEMBER_BYTES = 2 * 2**30
MAX_MANIFEST_BYTES = 64 * 2**20


class ArchiveStore(Protocol):
    """The part of the store that archives need."""

    def ended_jobs(self) -> Sequence[str]: ...

    def job_content(self, job_id: str) -> dict[str, object] | None: ...

    def add_job_content(self, content: Mapping[str, object], artifacts: Mapping[str, bytes]) -> bool: ...

    def artifact(self, digest: str) -> bytes: ...


class BadArchive(ValueError):
    """Not an archive, a damaged one, or one of a version that this program does not read."""


@dataclass(frozen=True)
class Carried:
    """`jobs` and `records` that the archive holds; of an import, `added` are the jobs that were new here."""

    jobs: int
    records: int
    added: int = 0


def write_archive(
    store: ArchiveStore, path: Path, job_ids: Sequence[str] | None, made_at: float, records: bool = True
) -> Carried:
    """Write what the jobs (all that have ended, by default) measured and promoted; without `records` the winners
    alone. Written beside `path` first, so that a cut leaves no half archive there."""
    beside = path.with_name(f".{path.name}.part")
    members: dict[str, dict[str, object]] = {}
    jobs = count = 0
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, data: bytes) -> None:
            if name not in members:
                members[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
                archive.writestr(name, data)

        for job_id in store.ended_jobs() if job_ids is None else job_ids:
            content = store.job_content(job_id)
            if content is None:
                continue
            tasks: list[dict[str, Any]] = content["tasks"]  # type: ignore[assignment]
            for task in tasks:
                task["trials"] = task["trials"] if records else []
                count += len(task["trials"])
                if task["winner"] is not None:
                    digest = task["winner"]["best"]["artifact"]
                    put(f"artifacts/{digest}", store.artifact(digest))
            if records or any(task["winner"] for task in tasks):
                jobs += 1
                put(f"jobs/{job_id}.json", json.dumps(content, separators=(",", ":"), allow_nan=False).encode())
        manifest = {"format": FORMAT, "version": VERSION, "made_at": made_at, "jobs": jobs, "records": count}
        archive.writestr(MANIFEST, json.dumps({**manifest, "members": members}, indent=1))
    beside.replace(path)
    return Carried(jobs, count)


def read_archive(store: ArchiveStore, path: Path) -> Carried:
    """Check the whole archive, then add every job that is not there. Raises BadArchive; OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive)
            members = _checked(archive, manifest)
            added = jobs = 0
            for name in sorted(n for n in members if n.startswith("jobs/")):
                content = _json(_read(archive, name), name)
                new = store.add_job_content(content, _artifacts_of(archive, content, members))
                jobs, added = jobs + 1, added + new
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as fault:
        raise BadArchive(f"{path} is no whole archive: {fault}") from fault
    return Carried(jobs, int(str(manifest.get("records", 0))), added)


def _manifest(archive: zipfile.ZipFile) -> Mapping[str, Any]:
    try:
        size = archive.getinfo(MANIFEST).file_size
    except KeyError:
        raise BadArchive("it has no manifest: not a tilewright archive") from None
    if size > MAX_MANIFEST_BYTES:
        raise BadArchive(f"its manifest takes {size} bytes")
    manifest = _json(_read(archive, MANIFEST), MANIFEST)
    if manifest.get("format") != FORMAT:
        raise BadArchive("not a tilewright archive")
    if manifest.get("version") != VERSION:
        raise BadArchive(f"it has version {manifest.get('version')}, this program reads {VERSION}: upgrade the program")
    return manifest


def _checked(archive: zipfile.ZipFile, manifest: Mapping[str, Any]) -> frozenset[str]:
    """The members' names, once each is there, is no other, and has the bytes that the manifest names."""
    told = manifest.get("members")
    if not isinstance(told, dict):
        raise BadArchive("its manifest names no members")
    names = [n for n in archive.namelist() if n != MANIFEST]
    if sorted(names) != sorted(told):
        raise BadArchive(f"its members are not those of its manifest: {sorted(set(names) ^ set(told))[:3]}")
    for name, facts in told.items():
        if not isinstance(facts, dict) or archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
            raise BadArchive(f"{name} is larger than {MAX_MEMBER_BYTES} bytes, or not described")
        digest = hashlib.sha256()
        with archive.open(name) as member:
            while part := member.read(2**20):
                digest.update(part)
        if digest.hexdigest() != facts.get("sha256"):
            raise BadArchive(f"{name} is damaged: it does not hash to what the manifest says")
    return frozenset(told)


def _artifacts_of(archive: zipfile.ZipFile, content: Mapping[str, Any], members: frozenset[str]) -> dict[str, bytes]:
    tasks = content.get("tasks")
    found: dict[str, bytes] = {}
    for task in tasks if isinstance(tasks, list) else []:
        winner = task.get("winner") if isinstance(task, dict) else None
        best = winner.get("best") if isinstance(winner, dict) else None
        digest = str(best.get("artifact")) if isinstance(best, dict) else ""
        if f"artifacts/{digest}" in members:
            found[digest] = _read(archive, f"artifacts/{digest}")
    return found


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as member:
        return member.read(MAX_MEMBER_BYTES)


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise BadArchive(f"{name} is no JSON: {fault}") from None
    if not isinstance(value, dict):
        raise BadArchive(f"{name} holds no object")
    return value
