"""`tilewright jobs`: list them, delete one, prune the old ones."""

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from tilewright.cli.connect import AsJson, Db, Key, Url, connect
from tilewright.cli.errors import BAD_ARGUMENTS, fail, print_json, shown
from tilewright.client import Client

jobs_app = typer.Typer(help="List the jobs, newest first; delete or prune ended ones.", invoke_without_command=True)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_ENDED = ("completed", "failed", "cancelled")
Keeping = Literal["keep", "remove"]
Winners = Annotated[Keeping, typer.Option("--winners", help="schedules that lookups serve: keep or remove")]
Records = Annotated[Keeping, typer.Option("--records", help="what was measured (the cost model learns from it)")]


@jobs_app.callback()
@shown
def list_jobs(context: typer.Context, url: Url = None, key: Key = None, db: Db = None, as_json: AsJson = False) -> None:
    """List the jobs, newest first."""
    if context.invoked_subcommand is not None:
        return
    with connect(url, key, db) as client:
        items = list(client.pages("/v1/jobs", {"limit": 100}))
    if as_json:
        print_json(items)
        return
    for job in items:
        print(f"{job['id']}  {job['state']:<11}  {job['trials']['done']:>5}/{job['max_trials']:<5}  {job['name']}")


@jobs_app.command()
@shown
def delete(
    job: str,
    winners: Winners = "keep",
    records: Records = "remove",
    url: Url = None,
    key: Key = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Delete a job that has ended. What lookups serve stays unless --winners remove."""
    with connect(url, key, db) as client:
        gone = client.remove_job(job, winners, records)
    print_json(gone) if as_json else print(_line(gone))


@jobs_app.command()
@shown
def prune(
    older_than: Annotated[str, typer.Option(help="age since the job's end, as in 12h, 30d or 8w")],
    winners: Winners = "keep",
    records: Records = "remove",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be removed")] = False,
    url: Url = None,
    key: Key = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Delete the jobs that ended longer ago than that."""
    before = time.time() - _seconds(older_than)
    with connect(url, key, db) as client:
        # All of them first: removing while paging would move the pages.
        old = [job for job in _ended(client) if datetime.fromisoformat(job["finished_at"]).timestamp() < before]
        gone: list[dict[str, Any]] = []
        for job in old:
            gone.append({"id": job["id"]} if dry_run else client.remove_job(job["id"], winners, records))
    if as_json:
        print_json({"dry_run": dry_run, "items": gone})
        return
    for item in gone:
        print(f"{item['id']}: would be removed" if dry_run else _line(item))
    print(f"{len(gone)} jobs")


def _ended(client: Client) -> Iterator[dict[str, Any]]:
    for state in _ENDED:
        yield from client.pages("/v1/jobs", {"limit": 100, "state": state})


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", age)
    if found is None:
        fail(f"--older-than: must be a number and one of s, m, h, d, w (as in 30d), got {age!r}", BAD_ARGUMENTS)
    return int(found[1]) * _UNITS[found[2]]


def _line(gone: dict[str, Any]) -> str:
    what = "deleted" if gone["deleted"] else "pruned, kept for what was kept of it"
    return f"{gone['id']}: {what} ({gone['trials']} trials, {gone['schedules']} schedules removed)"
