"""`tilewright replay`: one candidate rebuilt, checked and timed outside the service."""

from typing import Annotated

import typer
from rich.console import Console

from api.commands.database import open_database
from api.wiring import MeasurerChoice, build_measurer, policies
from tilewright.cli.connect import AsJson, Db
from tilewright.cli.errors import FAILED, fail, print_json, shown
from tilewright.cli.show import describe_workload, knobs_text, seconds
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import Measurer, MeasurerUnavailable, TaskRefused, Trial
from tuner.task import Task
from tuner.views import NotFound, TrialView


@shown
def replay(
    trial: Annotated[int, typer.Argument(help="the trial's id, as the trials table shows it", min=0, max=2**63 - 1)],
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild, check and time one trial again, a failed one too; nothing is stored."""
    store = open_database(db)
    try:
        view, workload, target = store.trial(trial)
    except NotFound:
        fail(f"no trial {trial} in this database")
    finally:
        store.close()
    measurer = build_measurer(MeasurerChoice.parse("ray"))
    try:
        baseline, measured = _measure(measurer, Task(workload, target), view)
    except (MeasurerUnavailable, TaskRefused) as fault:
        fail(f"the trial cannot be measured here: {fault}")
    finally:
        measurer.close()
    document = {
        "trial": trial,
        "workload": workload.to_json(),
        "candidate": view.candidate.to_json(),
        "then": {"outcome": view.outcome.value, "latency_s": view.latency_s, "error": view.error},
        "now": measured.to_json() | {"latency_s": measured.latency_s},
        "baseline": None if baseline is None else {"name": baseline[0], "latency_s": baseline[1].latency_s},
    }
    if as_json:
        print_json(document)
    else:
        _show(view, describe_workload(workload.to_json()), measured, baseline)
    raise SystemExit(0 if measured.outcome is Outcome.OK else FAILED)


def _measure(measurer: Measurer, task: Task, view: TrialView) -> tuple[tuple[str, Measurement] | None, Measurement]:
    here = [d for d in measurer.devices() if d.target == task.target]
    if not here:
        fail(f"the trial was measured on {task.target.model} ({task.target.arch}), which is not here")
    device = here[0]
    session = measurer.open(task, device, policies()[device.target.kind], seed=0)
    try:
        session.submit([Trial(view.id, view.ordinal, 0, view.candidate)], None)
        while True:
            done = session.results(1.0)
            if done:
                return session.baseline, done[0].measurement
    finally:
        session.close()


def _show(view: TrialView, workload: str, now: Measurement, baseline: tuple[str, Measurement] | None) -> None:
    console = Console()
    console.print(f"{workload}: {view.candidate.sketch} {knobs_text(view.candidate.knobs)}", markup=False)
    console.print(f"then: {view.outcome} {seconds(view.latency_s)} {view.error or ''}", markup=False)
    console.print(f"now:  {now.outcome} {seconds(now.latency_s)} {now.error or ''}", markup=False)
    if now.max_rel_err is not None:
        console.print(f"largest error, as a share of what is accepted: {now.max_rel_err:.3g}")
    if baseline is not None:
        console.print(f"{baseline[0]}: {seconds(baseline[1].latency_s)}")


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.command("replay")(replay)
