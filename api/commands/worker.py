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
) -> None:
    """Join a Ray cluster with this host's devices, until stopped."""
    if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", ray):
        fail(f"--ray: must be HOST:PORT, got {ray!r}", BAD_ARGUMENTS)
    from workers.node import node_command

    command = node_command(ray, cores, visible_gpus())
    os.execv(command[0], command)  # signals then reach Ray's node itself


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.command("worker")(worker)
