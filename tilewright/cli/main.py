"""`tilewright`: one command for all of it. The commands that need the service come from its entry points."""

import sys
import uuid
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tilewright.cli import show
from tilewright.cli.connect import AsJson, Db, Key, Url, connect, load_entry
from tilewright.cli.errors import FAILED, INTERRUPTED, fail, print_json, shown
from tilewright.cli.jobs import jobs_app
from tilewright.cli.refresh import refresh
from tilewright.cli.suites import BadSuite, read_suite
from tilewright.cli.watch import exit_status, warn_if_waiting
from tilewright.cli.watch import watch as watch_job
from tilewright.cli.workload_options import add_workload_commands
from tilewright.runtime.artifact import ArtifactError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
submit_app = typer.Typer(no_args_is_help=True, help="Submit a job to a server.")
best_app = typer.Typer(no_args_is_help=True, help="The best schedule known for a shape.")
app.add_typer(submit_app, name="submit")
app.add_typer(best_app, name="best")
app.add_typer(jobs_app, name="jobs")
app.command("refresh")(refresh)

Target = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Trials = Annotated[int, typer.Option("--trials", help="distinct candidates to measure, over all tasks")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="limit of the search in seconds")]
Seed = Annotated[int, typer.Option("--seed", help="seed of the search")]
Preset = Annotated[str, typer.Option("--preset", help="quick, standard or thorough")]
Name = Annotated[str, typer.Option("--name", help="a name for people")]


def _job_body(tasks: list[dict[str, object]], **settings: Any) -> dict[str, object]:
    seconds = settings.pop("seconds")
    body: dict[str, object] = {"tasks": tasks, **settings}
    return body if seconds is None else {**body, "max_seconds": seconds}


@shown
def _submit(tasks: list[dict[str, object]], url: str | None, key: str | None, as_json: bool, **settings: Any) -> None:
    with connect(url, key) as client:
        job = client.submit(_job_body(tasks, **settings), str(uuid.uuid4()))
    warn_if_waiting(job, Console(stderr=True))
    print_json(job) if as_json else print(job["id"])


def submit_one(
    workload: dict[str, object],
    url: Url = None,
    key: Key = None,
    target: Target = "auto",
    trials: Trials = 64,
    seconds: Seconds = None,
    seed: Seed = 0,
    preset: Preset = "standard",
    name: Name = "",
    as_json: AsJson = False,
) -> None:
    settings = {"target": target, "max_trials": trials, "seconds": seconds, "seed": seed, "preset": preset}
    _submit([{"workload": workload}], url, key, as_json, name=name, **settings)


add_workload_commands(submit_app, submit_one, "Submit a job for one workload.")


@submit_app.command("suite")
def submit_suite(
    file: Annotated[Path, typer.Argument(help="csv of shapes, JSON job body, or a model's config.json")],
    url: Url = None,
    key: Key = None,
    target: Target = "auto",
    trials: Trials = 64,
    seconds: Seconds = None,
    seed: Seed = 0,
    preset: Preset = "standard",
    name: Name = "",
    as_json: AsJson = False,
) -> None:
    """Submit a job for all workloads of a file."""
    try:
        tasks = read_suite(file)
    except BadSuite as fault:
        fail(str(fault), 2)
    settings = {"target": target, "max_trials": trials, "seconds": seconds, "seed": seed, "preset": preset}
    _submit(tasks, url, key, as_json, name=name or file.stem, **settings)


@shown
def best_one(
    workload: dict[str, object],
    url: Url = None,
    key: Key = None,
    db: Db = None,
    target: Target = "auto",
    arch: Annotated[str | None, typer.Option(help="only this architecture")] = None,
    device: Annotated[str | None, typer.Option(help="only this device model")] = None,
    driver: Annotated[str | None, typer.Option(help="only this driver")] = None,
    nearest: Annotated[bool, typer.Option("--nearest", help="a labelled neighbour will do")] = False,
    as_json: AsJson = False,
) -> None:
    narrowed = {"arch": arch, "device": device, "driver": driver, "nearest": True if nearest else None}
    with connect(url, key, db) as client:
        answer = client.best(workload, target=target, **narrowed)
    print_json(answer) if as_json else show.best_table(Console(), answer)


add_workload_commands(best_app, best_one, "The best schedule known for one workload.")


@app.command()
@shown
def watch(job: str, url: Url = None, key: Key = None, db: Db = None, as_json: AsJson = False) -> None:
    """Follow a job to its end."""
    console = Console(stderr=as_json)
    with connect(url, key, db) as client:
        state = watch_job(client, job, console, quiet=as_json)
    print_json(state) if as_json else show.job_table(console, state)
    raise SystemExit(exit_status(state))


@app.command()
@shown
def cancel(job: str, url: Url = None, key: Key = None, db: Db = None, as_json: AsJson = False) -> None:
    """Cancel a job; what was measured stays."""
    with connect(url, key, db) as client:
        state = client.act(job, "cancel")
    print_json(state) if as_json else print(state["state"])


@app.command()
@shown
def lookups(url: Url = None, key: Key = None, db: Db = None, as_json: AsJson = False) -> None:
    """How often each shape was asked for, and how often the answer was exact, nearest, stale or missing."""
    with connect(url, key, db) as client:
        items = list(client.pages("/v1/lookups"))
    if as_json:
        print_json(items)
        return
    for item in items:
        counts = " ".join(f"{k}={v}" for k, v in item["counts"].items())
        print(f"{show.describe_workload(item['workload'])}: {counts}")


@app.command()
@shown
def export(
    schedule: Annotated[str | None, typer.Argument(help="a schedule's id")] = None,
    job: Annotated[str | None, typer.Option("--job", help="all winners of a job")] = None,
    out: Annotated[Path, typer.Option("--out", help="folder to write")] = Path("tilewright-export"),
    url: Url = None,
    key: Key = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Write a schedule's artifact, or all winners of a job as one folder for `tilewright.torch.use`."""
    from tilewright.export import NothingToExport, export_schedules

    if (schedule is None) == (job is None):
        fail("give either a schedule or --job", 2)
    with connect(url, key, db) as client:
        try:
            written = [str(p) for p in export_schedules(client, out, schedule_id=schedule, job_id=job)]
        except (NothingToExport, ArtifactError, OSError) as fault:
            fail(str(fault))
    print_json({"written": written}) if as_json else print("\n".join(written))


@app.command("show")
@shown
def show_schedule(
    schedule: str,
    asm: Annotated[bool, typer.Option("--asm/--no-asm", help="the machine code too")] = True,
    url: Url = None,
    key: Key = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Print a schedule's knobs, TIR and assembly."""
    from tilewright.export import describe_artifact

    with connect(url, key, db) as client:
        data = client.schedule(schedule)
        try:
            program = describe_artifact(client.artifact(schedule), assembly=asm)
        except ArtifactError as fault:
            fail(str(fault))
    if as_json:
        print_json({**data, "program": program})
        return
    show.best_table(Console(), data)
    print(program)


def main() -> None:
    """Entry point: exit status 0 done, 1 the job failed, 2 bad arguments, 130 interrupted."""
    try:
        _add_service_commands()
        app(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _add_service_commands() -> None:
    """They cost the service's imports: only the one that was asked for is loaded."""
    names = {e.name for e in entry_points(group="tilewright.commands")}
    wanted = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    if wanted in names:
        load_entry("tilewright.commands", str(wanted))(app)
        return
    for name in sorted(names):
        app.command(name, help="(from the service)")(lambda: None)


__all__ = ["FAILED", "app", "main"]
