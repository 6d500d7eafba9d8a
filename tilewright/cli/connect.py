"""Where a command finds the service: a server by --url, or the local database through the service's own code."""

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from tilewright.cli.errors import BAD_ARGUMENTS, fail
from tilewright.client import Client

Url = Annotated[str | None, typer.Option("--url", help="server to speak to; without it, the local database")]
Key = Annotated[str | None, typer.Option("--key", help="bearer key (or TILEWRIGHT_KEY)")]
Db = Annotated[str | None, typer.Option("--db", help="database URL; the default is in the user's data folder")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document on stdout and nothing else")]


def load_entry(group: str, name: str) -> Callable[..., Any]:
    """What the service registered under `group`; ends the command with what is missing otherwise."""
    found = [e for e in entry_points(group=group) if e.name == name]
    if not found:
        fail(f"{name!r} needs the tilewright service: run it from a checkout or an image", BAD_ARGUMENTS)
    try:
        entry: Callable[..., Any] = found[0].load()
    except ModuleNotFoundError as fault:
        fail(f"{name!r} needs the tilewright service (module {fault.name} is missing): run it from a checkout")
    return entry


def connect(url: str | None, key: str | None, db: str | None = None) -> Client:
    """A client of the server at `url`, or of the database `db` opened in this process."""
    key = key or os.environ.get("TILEWRIGHT_KEY")
    url = url or os.environ.get("TILEWRIGHT_URL")
    if url and not db:
        try:
            return Client(url, key)
        except ValueError as fault:
            fail(f"--url: {fault}", BAD_ARGUMENTS)
    client: Client = load_entry("tilewright.backends", "local")(db)
    return client
