"""`tilewright refresh`: tune again what a new driver, compiler or sketch version made stale."""

import uuid
from collections import defaultdict
from typing import Annotated, Any

import typer

from tilewright.cli import show
from tilewright.cli.connect import AsJson, Db, Key, Url, connect
from tilewright.cli.errors import print_json, shown

MAX_TASKS = 4096  # of one job


@shown
def refresh(
    trials: Annotated[int, typer.Option("--trials", min=1, help="distinct candidates for each workload")] = 64,
    priority: Annotated[int, typer.Option("--priority", min=-100, max=100, help="below other jobs by default")] = -10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what is stale, and why")] = False,
    url: Url = None,
    key: Key = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job for each kind of device with every workload that is served, but not exactly any more."""
    with connect(url, key, db) as client:
        items = list(client.pages("/v1/stale", {"limit": 500}))
        jobs = [] if dry_run else [client.submit(b, str(uuid.uuid4())) for b in bodies(items, trials, priority)]
    if as_json:
        print_json({"stale": items, "jobs": [job["id"] for job in jobs]})
        return
    for item in items:
        print(f"{show.describe_workload(item['workload'])} on {item['target']['model']}: {', '.join(item['differs'])}")
    print(f"{len(items)} stale" + "".join(f"; submitted {job['id']}" for job in jobs))


def bodies(items: list[dict[str, Any]], trials: int, priority: int) -> list[dict[str, Any]]:
    """The jobs' requests: by kind of device, at most MAX_TASKS workloads in each."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_kind[item["target"]["kind"]].append({"workload": item["workload"]})
    out = []
    for kind, tasks in sorted(by_kind.items()):
        for start in range(0, len(tasks), MAX_TASKS):
            part = tasks[start : start + MAX_TASKS]
            job = {"name": "refresh", "target": kind, "tasks": part, "priority": priority}
            out.append({**job, "max_trials": min(trials * len(part), 1_000_000)})
    return out
