"""`tilewright tune`: a job from start to end in this process, with no server."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from api.commands.peers import Peers, check_peers
from api.defaults import default_database_url
from api.local import open_client
from api.runner.service import Runner
from api.wiring import MeasurerChoice, build_measurer, build_store, policies
from tilewright.cli import show
from tilewright.cli.connect import AsJson, Db
from tilewright.cli.errors import INTERRUPTED, fail, print_json, shown
from tilewright.cli.suites import BadSuite, read_suite
from tilewright.cli.watch import exit_status, watch
from tilewright.cli.workload_options import add_workload_commands

Target = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Trials = Annotated[int, typer.Option("--trials", help="distinct candidates to measure, over all tasks")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="limit of the search in seconds")]
Seed = Annotated[int, typer.Option("--seed", help="seed of the search")]
Preset = Annotated[str, typer.Option("--preset", help="quick, standard or thorough")]
MeasurerOption = Annotated[str, typer.Option("--measurer", help="ray, scripted:FILE.json or recorded:FILE")]


def tune_one(
    workload: dict[str, object],
    target: Target = "auto",
    trials: Trials = 64,
    seconds: Seconds = None,
    seed: Seed = 0,
    preset: Preset = "standard",
    db: Db = None,
    measurer: MeasurerOption = "ray",
    peer: Peers = None,
    as_json: AsJson = False,
) -> None:
    body = {"tasks": [{"workload": workload}], "target": target, "max_trials": trials, "seed": seed, "preset": preset}
    tune_job(body | ({} if seconds is None else {"max_seconds": seconds}), db, measurer, as_json, peer or ())


def tune_suite(
    file: Annotated[Path, typer.Argument(help="csv of shapes, JSON job body, or a model's config.json")],
    target: Target = "auto",
    trials: Trials = 64,
    seconds: Seconds = None,
    seed: Seed = 0,
    preset: Preset = "standard",
    db: Db = None,
    measurer: MeasurerOption = "ray",
    peer: Peers = None,
    as_json: AsJson = False,
) -> None:
    """Tune all workloads of a file."""
    try:
        tasks = read_suite(file)
    except BadSuite as fault:
        fail(str(fault), 2)
    body: dict[str, object] = {"tasks": tasks, "target": target, "max_trials": trials, "seed": seed, "preset": preset}
    body["name"] = file.stem
    tune_job(body | ({} if seconds is None else {"max_seconds": seconds}), db, measurer, as_json, peer or ())


@shown
def tune_job(body: dict[str, object], db: str | None, measurer: str, as_json: bool, peers: Sequence[str] = ()) -> None:
    """Submit to the database and work on that job alone; Ctrl-C keeps what was measured."""
    try:
        choice = MeasurerChoice.parse(measurer)
        check_peers(peers)
    except ValueError as fault:
        fail(str(fault), 2)
    if peers:
        _show_peers()
    with open_client(db, submits=True) as client:
        job_id = client.submit(body)["id"]
        console = Console(stderr=as_json)
        with RunnerThread(db or default_database_url(), choice, job_id, peers) as runner:
            watch(client, job_id, console, quiet=as_json, alive=lambda: runner.error is None)
        if runner.error is not None:
            fail(f"the search ended early: {runner.error or type(runner.error).__name__}. What was measured stays")
        job = client.job(job_id)
    print_json(job) if as_json else show.job_table(console, job)
    raise SystemExit(exit_status(job))


def _show_peers() -> None:
    """What the runner says of users' own kernels goes to the terminal (standard error: --json owns the other)."""
    logger = logging.getLogger("tilewright.peers")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())


class RunnerThread:
    """Runs one job beside the thread that shows it."""

    def __init__(self, db: str, choice: MeasurerChoice, job_id: str, peers: Sequence[str] = ()) -> None:
        self._db, self._choice, self._job_id, self._peers = db, choice, job_id, peers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)
        self.error: Exception | None = None

    def __enter__(self) -> "RunnerThread":
        signal.signal(signal.SIGTERM, _interrupt)
        self._thread.start()
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> None:
        self._stop.set()
        self._thread.join(30.0)
        if kind is KeyboardInterrupt:
            raise SystemExit(INTERRUPTED)

    def _run(self) -> None:
        store = build_store(self._db)
        try:
            measurer = build_measurer(self._choice, peers=self._peers)
            try:
                runner_id = f"{socket.gethostname()}:{os.getpid()}:tune"
                learns = self._choice.scenario is None
                Runner(
                    store, measurer, policies(), runner_id, 10.0, self._stop, only_job=self._job_id, learns=learns
                ).run_forever()
            finally:
                measurer.close()
        except Exception as fault:  # noqa: BLE001  shown by the thread that waits
            self.error = fault
        finally:
            store.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    group = typer.Typer(no_args_is_help=True, help="Tune here and now, without a server.")
    add_workload_commands(group, tune_one, "Tune one workload.")
    group.command("suite")(tune_suite)
    app.add_typer(group, name="tune")
