"""Follows a job to its end with a live progress bar, over broken connections too."""

import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tilewright.cli.show import seconds
from tilewright.client import Client, JsonObject, ServerEvent, Unreachable

FINAL_STATES = frozenset({"completed", "failed", "cancelled"})
RECONNECT_LIMIT_S = 120.0


def follow(client: Client, job_id: str) -> Iterator[ServerEvent]:
    """The job's events to its end; a broken stream is taken up again where it stopped (Last-Event-ID)."""
    last, broken_since = 0, None
    while True:
        try:
            for event in client.events(job_id, last):
                last, broken_since = max(last, event.sequence), None
                yield event
            if client.job(job_id)["state"] in FINAL_STATES:
                return
        except Unreachable:
            broken_since = broken_since or time.monotonic()
            if time.monotonic() - broken_since > RECONNECT_LIMIT_S:
                raise
            time.sleep(1.0)


def watch(
    client: Client, job_id: str, console: Console, quiet: bool = False, alive: Callable[[], bool] = lambda: True
) -> JsonObject:
    """Show progress until the job has ended, or (without a stream) nobody is `alive` to end it; its last state."""
    job = client.job(job_id)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
        console=console,
        disable=quiet,
    )
    if client.streams:
        warn_if_waiting(job, console)
    with bar:
        row = bar.add_task(job_id, total=job["max_trials"], completed=job["trials"]["done"], best="")
        if job["state"] not in FINAL_STATES:
            if client.streams:
                for event in follow(client, job_id):
                    _show(bar, row, event)
            else:
                _poll(client, job_id, bar, row, alive)
        job = client.job(job_id)
        bar.update(row, completed=job["trials"]["done"])
    return job


def _poll(client: Client, job_id: str, bar: Progress, row: TaskID, alive: Callable[[], bool]) -> None:
    """The local database has no stream: ask twice a second."""
    lacking: str | None = None
    while alive():
        job = client.job(job_id)
        if job.get("waiting_for") and job["waiting_for"] != lacking:
            lacking = job["waiting_for"]
            warn_if_waiting(job, bar.console)
        found = [seconds(best["latency_s"]) for task in job["tasks"] if (best := task.get("best"))]
        bar.update(row, completed=job["trials"]["done"], description=f"{job_id} {job['state']}", best=" ".join(found))
        if job["state"] in FINAL_STATES:
            return
        time.sleep(0.5)


def warn_if_waiting(job: JsonObject, console: Console) -> None:
    """Say what a job that nobody has taken lacks: following it may take for ever."""
    if job.get("waiting_for"):
        console.print(f"{job['id']} is {job['state']} and waits: {job['waiting_for']}", style="yellow", soft_wrap=True)


def _show(bar: Progress, row: TaskID, event: ServerEvent) -> None:
    if event.kind == "trial":
        bar.advance(row)
    elif event.kind == "best" and event.data.get("latency_s") is not None:
        text = f"task {event.data.get('task', '?')}: {seconds(event.data['latency_s'])}"
        bar.update(row, best=text)
    elif event.kind == "job" and event.data.get("state"):
        bar.update(row, description=f"{event.data.get('id', '')} {event.data['state']}".strip())


def exit_status(job: JsonObject) -> int:
    """0 for a completed job, 1 for one that failed, was cancelled or found nothing."""
    return 0 if job["state"] == "completed" else 1
