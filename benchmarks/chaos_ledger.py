"""What the store acknowledged, written down independently of it, and the comparison of the two afterwards."""

import itertools
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tuner.best import BestConfig
from tuner.job import JobState, StopReason
from tuner.ports import Lease, Measured, RunnerStore

Row = Mapping[str, Any]


class Ledger:
    """A file that lines are appended to, each in one write: what is in it was acknowledged before."""

    def __init__(self, folder: Path, who: str) -> None:
        path = folder / f"{who}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **data: object) -> None:
        os.write(self._file, (json.dumps({"kind": kind, "at": time.time(), **data}) + "\n").encode())


class LedgerStore:
    """A runner's store whose acknowledged commits, promotions and ends of jobs are written to a ledger."""

    def __init__(self, inner: RunnerStore, ledger: Ledger) -> None:
        self._inner, self._ledger = inner, ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, lease: Lease, task_id: int, measured: Measured) -> None:
        self._inner.commit(lease, task_id, measured)
        trial, m = measured.trial, measured.measurement
        self._ledger.write(
            "commit",
            job=lease.job_id,
            task=task_id,
            trial=trial.id,
            attempt=trial.attempt,
            candidate=trial.candidate.key,
            outcome=m.outcome.value,
            latency_s=m.latency_s,
        )

    def promote(self, lease: Lease, task_id: int, best: BestConfig, artifact: bytes, beaten: Any = None) -> str:
        schedule = self._inner.promote(lease, task_id, best, artifact, beaten)
        self._ledger.write("promote", job=lease.job_id, schedule=schedule)
        return schedule

    def finish_job(self, lease: Lease, state: JobState, reason: StopReason | None, error: str | None) -> None:
        self._inner.finish_job(lease, state, reason, error)
        self._ledger.write("finish", job=lease.job_id, state=state.value)


def lines(folder: Path) -> Iterator[Row]:
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            yield json.loads(line)


@dataclass
class Verdict:
    """Each list holds one line a fault; empty lists are what is asked for."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    off_budget: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def verify(url: str, folder: Path) -> Verdict:
    """Compare the ledgers in `folder` with the database. No process of the service may still write."""
    verdict = Verdict()
    entries = list(lines(folder))
    with psycopg.connect(url) as connection:
        jobs = {r["id"]: r for r in _rows(connection, "SELECT * FROM jobs")}
        trials = _rows(connection, "SELECT * FROM trials")
        found = _rows(
            connection, "SELECT m.*, t.job_id, t.candidate_key FROM measurements m JOIN trials t ON t.id = m.trial_id"
        )
        schedules = {r["id"] for r in _rows(connection, "SELECT id FROM schedules")}
        events = _rows(connection, "SELECT job_id, sequence, kind, data FROM events ORDER BY job_id, sequence")
        counted = _rows(connection, "SELECT job_id, sum(trials) AS trials FROM job_outcomes GROUP BY job_id")
    _acknowledged(verdict, entries, jobs, found, schedules)
    _doubles(verdict, entries, jobs, trials, found, events, {r["job_id"]: r["trials"] for r in counted})
    _states(verdict, jobs, trials)
    _overlaps(verdict, found)
    kinds = Counter(e["kind"] for e in entries)
    states = Counter(f"jobs_{j['state']}" for j in jobs.values())
    verdict.counts = {"jobs": len(jobs), "records": len(found), "commits_in_ledger": kinds["commit"], **states}
    return verdict


def _rows(connection: psycopg.Connection[Any], query: str) -> list[Row]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query).fetchall()


def _acknowledged(
    verdict: Verdict, entries: list[Row], jobs: Mapping[str, Row], found: list[Row], schedules: set[str]
) -> None:
    """Everything that was acknowledged is there, as it was told."""
    stored = {(m["trial_id"], m["attempt"]): m for m in found}
    for e in entries:
        if e["kind"] == "commit":
            m = stored.get((e["trial"], e["attempt"]))
            told = (e["job"], e["candidate"], e["outcome"], e["latency_s"])
            if m is None or told != (
                m["job_id"],
                m["candidate_key"],
                json.loads(m["measurement"])["outcome"],
                m["latency_s"],
            ):
                verdict.lost.append(
                    f"commit of trial {e['trial']} attempt {e['attempt']} of {e['job']}: {m and m['measurement']}"
                )
        elif e["kind"] == "promote" and e["schedule"] not in schedules:
            verdict.lost.append(f"schedule {e['schedule']}")
        elif e["kind"] == "submit" and e["job"] not in jobs:
            verdict.lost.append(f"job {e['job']}")
        elif e["kind"] in ("finish", "cancel") and jobs.get(e["job"], {}).get("state") != e["state"]:
            verdict.lost.append(f"{e['job']} was {e['state']}, is {jobs.get(e['job'], {}).get('state')}")


def _doubles(
    verdict: Verdict,
    entries: list[Row],
    jobs: Mapping[str, Row],
    trials: list[Row],
    found: list[Row],
    events: list[Row],
    counted: Mapping[str, int],
) -> None:
    checks = {
        "ordinal": Counter((t["job_id"], t["ordinal"]) for t in trials),
        "candidate": Counter((t["task_id"], t["candidate_key"]) for t in trials),
        "attempt": Counter((m["trial_id"], m["attempt"]) for m in found),
        "place on the curve": Counter((m["task_id"], m["sequence"]) for m in found),
        "event of a trial": Counter(
            (e["job_id"], d["id"], d["attempt"])
            for e in events
            if e["kind"] == "trial"
            for d in [json.loads(e["data"])]
        ),
        "job of one submission": Counter(
            e["key"] for e in {(e["key"], e["job"]): e for e in entries if e["kind"] == "submit"}.values()
        ),
    }
    for what, counts in checks.items():
        verdict.doubled += [f"{what} {key}: {n} times" for key, n in counts.items() if n > 1]
    measured = Counter(t["job_id"] for t in trials if t["outcome"] is not None)
    reserved = Counter(t["job_id"] for t in trials)
    for job_id, job in jobs.items():
        if not job["trials_done"] == measured[job_id] == counted.get(job_id, 0):
            verdict.doubled.append(f"{job_id} counts {job['trials_done']} trials, has {measured[job_id]}")
        if reserved[job_id] > job["max_trials"]:
            verdict.doubled.append(f"{job_id} reserved {reserved[job_id]} of {job['max_trials']}")
    last: dict[str, int] = defaultdict(int)
    for e in events:
        if e["sequence"] != last[e["job_id"]] + 1:
            verdict.lost.append(f"events of {e['job_id']} go from {last[e['job_id']]} to {e['sequence']}")
        last[e["job_id"]] = e["sequence"]
    for e in entries:
        if e["kind"] == "watched" and e["sequences"] != list(range(1, last[e["job"]] + 1)):
            verdict.lost.append(f"a watcher of {e['job']} saw {len(e['sequences'])} of {last[e['job']]} events")


def _states(verdict: Verdict, jobs: Mapping[str, Row], trials: list[Row]) -> None:
    measured = Counter(t["job_id"] for t in trials if t["outcome"] is not None)
    for job_id, job in jobs.items():
        state, why = job["state"], job["stop_reason"] or job["error_code"]
        if state not in ("completed", "failed", "cancelled"):
            verdict.stuck.append(f"{job_id} is {state} after {measured[job_id]} of {job['max_trials']} trials")
        elif why is None:
            verdict.off_budget.append(f"{job_id} is {state} and does not say why")
        elif why == "trials" and measured[job_id] != job["max_trials"]:
            verdict.off_budget.append(f"{job_id} ended with {measured[job_id]} of {job['max_trials']} trials")
        elif state == "failed":
            verdict.off_budget.append(f"{job_id} failed: {job['error_code']}: {job['error_message']}")


def _overlaps(verdict: Verdict, found: list[Row]) -> None:
    intervals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in found:
        m = json.loads(row["measurement"])
        if m["outcome"] == "OK" and m["interval"]:
            intervals[m["observation"]["device_id"]].append(tuple(m["interval"]))
    for device, taken in intervals.items():
        taken.sort()
        verdict.overlapping += [f"{device}: {a} and {b}" for a, b in itertools.pairwise(taken) if a[1] > b[0]]
