"""`tilewright worker`: this host's devices for a Ray cluster."""

import os
import re
from typing import Annotated

import typer

from api.defaults import visible_gpus
from tilewright.cli.errors import BAD_ARGUMENTS, fail


def worker(
    ray: Annotated[str, typer.Option("--ray", help="address of the cluster's head, HOST:PORT")],
    cores: Annotated[int | None, typer.Option(min=1, help="CPU cores that builders may use")] = None,
    measurer: Annotated[str, typer.Option(help="ray, or scripted:FILE.json for the devices it declares")] = "ray",
    device: Annotated[list[str] | None, typer.Option(help="bring this device alone (repeatable)")] = None,
) -> None:
    """Join a Ray cluster with this host's devices, until stopped."""
    if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", ray):
        fail(f"--ray: must be HOST:PORT, got {ray!r}", BAD_ARGUMENTS)
    from workers.node import node_command

    command = node_command(ray, _devices(measurer, device or []), cores)
    os.execv(command[0], command)  # signals then reach Ray's node itself


def _devices(measurer: str, wanted: list[str]) -> list[str]:
    """Those of this host's devices, or of the script's, that are wanted: all of them where none is named."""
    from workers.config import parse_measurer
    from workers.gpu_host import find_gpus
    from workers.host_devices import devices_of

    try:
        present = devices_of(parse_measurer(measurer), find_gpus(visible_gpus()))
    except ValueError as fault:
        fail(str(fault), BAD_ARGUMENTS)
    for name in wanted:
        if name not in present:
            fail(f"--device {name}: there is {', '.join(present)}", BAD_ARGUMENTS)
    return wanted or list(present)


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.command("worker")(worker)
