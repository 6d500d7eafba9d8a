"""`tilewright serve`: HTTP service and runner on one machine, by one command."""

import contextlib
import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from api.app import create_app
from api.auth import check_binding, read_keys
from api.commands.database import open_database
from api.commands.peers import Peers, check_peers
from api.defaults import DEFAULT_PORT, default_database_url, default_key_file, default_paths
from api.errors import BindingRefused
from api.logs import Form, configure
from api.runner_process import RunnerProcess
from api.wiring import MeasurerChoice, build_api_settings
from tilewright.cli.errors import BAD_ARGUMENTS, Refused, fail, shown

log = logging.getLogger("tilewright.serve")


@shown
def serve(
    host: Annotated[str, typer.Option(help="address to listen on; beyond loopback a key file is needed")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on")] = DEFAULT_PORT,
    db: Annotated[str | None, typer.Option("--db", help="database URL; SQLite in the user's data folder")] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="address of a Ray cluster; a local one is started")] = None,
    measurer: Annotated[str, typer.Option(help="ray, scripted:FILE.json or recorded:FILE")] = "ray",
    key_file: Annotated[Path | None, typer.Option(help="file of bearer keys, one a line")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="CPU cores the workers own")] = None,
    lease_s: Annotated[float, typer.Option(min=1.0, help="seconds after which a silent runner's job is free")] = 10.0,
    jobs: Annotated[int, typer.Option(min=1, help="jobs that the runner works on at a time")] = 1,
    peer: Peers = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0.01, help="remove jobs that ended longer ago, but for their winners")
    ] = None,
    log_format: Annotated[Form, typer.Option(help="lines for people, or JSON objects")] = "text",
    runner: Annotated[bool, typer.Option("--runner/--no-runner", help="start a runner beside the HTTP service")] = True,
) -> None:
    """Serve the API and the dashboard, and run the jobs."""
    configure(log_format)
    try:
        choice = MeasurerChoice.parse(measurer)
        check_peers(peer)
        path = key_file or default_key_file()
        keys = read_keys(path.read_text(encoding="utf-8")) if path is not None else ()
    except (ValueError, OSError) as fault:
        fail(str(fault), BAD_ARGUMENTS)
    url = db or default_database_url()
    _check_cache(default_paths().cache)
    store = open_database(url, migrate=True)
    keyed = bool(keys) or store.has_keys()
    try:
        listener = _listen(host, port, keyed)
    except Refused:
        store.close()
        raise
    child = RunnerProcess(url, choice.text, ray, cores, lease_s, jobs, peer or (), log_format) if runner else None
    try:
        if child is not None:
            child.start()
        _announce(host, listener.getsockname()[1], url)
        config = uvicorn.Config(
            create_app(store, build_api_settings(keys, keyed=keyed, keep_days=keep_days)),
            log_level="warning",
            timeout_graceful_shutdown=5,  # open event streams would hold the end up for ever
        )
        with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn once it has ended in order
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        if child is not None:
            child.stop()
        store.close()
        listener.close()


def _listen(host: str, port: int, keyed: bool) -> socket.socket:
    """Bound before anything is started, so that a port in use is one line and leaves nothing behind."""
    try:
        check_binding(host, keyed)
    except BindingRefused as fault:
        raise Refused(str(fault), BAD_ARGUMENTS) from fault
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as fault:
        listener.close()
        raise Refused(f"cannot listen on {host}, port {port}: {fault.strerror}. Another --port may be free") from fault
    return listener


def _check_cache(folder: Path) -> None:
    """A runner that cannot write there would fail again and again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as fault:
        raise Refused(
            f"the cache folder {folder} cannot be written ({fault.strerror}): set TILEWRIGHT_CACHE"
        ) from fault


def _announce(host: str, port: int, url: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    log.info("dashboard at http://%s:%d/ (database %s, process %d)", shown, port, _shown(url), os.getpid())


def _shown(url: str) -> str:
    """The URL without a password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://...@{tail}" if at else url


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.command("serve")(serve)
