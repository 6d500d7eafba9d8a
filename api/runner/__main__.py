"""`python -m api.runner`: one runner process on a database and a measurer."""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

from api.defaults import default_database_url
from api.logs import configure
from api.runner.service import SLICE_S, Runner
from api.wiring import MeasurerChoice, build_measurer, build_store, policies
from tuner.ports import Measurer, MeasurerUnavailable, RunnerStore

log = logging.getLogger("tilewright.runner")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tilewright-runner", description=__doc__)
    parser.add_argument("--db", default=None, help="database URL (default: TILEWRIGHT_DB or the user's data folder)")
    parser.add_argument("--ray", default=None, help="address of a Ray cluster; without it a local one is started")
    parser.add_argument("--measurer", default="ray", help="ray, scripted:FILE.json or recorded:FILE")
    parser.add_argument("--cores", type=int, default=None, help="CPU cores to own (default: all this process may use)")
    parser.add_argument("--peer", action="append", default=[], help="own kernel to compare with, module:function")
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="how to write the log")
    parser.add_argument("--lease-s", type=float, default=10.0, help="seconds after which a silent runner's job is free")
    parser.add_argument("--slice-s", type=float, default=SLICE_S, help="seconds before an equal job gets its turn")
    parser.add_argument("--jobs", type=int, default=1, help="jobs to work on at a time (default: 1)")
    parser.add_argument("--parent-stdin", action="store_true", help="end when stdin closes (set by tilewright serve)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None, watched: Callable[[RunnerStore], RunnerStore] | None = None) -> int:
    """`watched` puts something between the runner and its store (the chaos run's ledger)."""
    options = arguments(argv)
    configure(options.log_format)
    stop = threading.Event()
    _stop_on_signals(stop)
    if options.parent_stdin:
        threading.Thread(target=_end_with_parent, args=(stop,), name="parent-watch", daemon=True).start()
    store = build_store(options.db or default_database_url())
    choice = MeasurerChoice.parse(options.measurer)
    measurer = build_measurer(choice, options.ray, options.cores, options.peer)
    seen: RunnerStore = store if watched is None else watched(store)
    try:
        _await_devices(measurer, stop)
        _stop_on_signals(stop)  # once more: Ray installs handlers of its own when it starts
        runner_id = f"{socket.gethostname()}:{os.getpid()}"
        learns = choice.scenario is None
        Runner(
            seen,
            measurer,
            policies(),
            runner_id,
            options.lease_s,
            stop,
            learns=learns,
            slots=options.jobs,
            slice_s=options.slice_s,
        ).run_forever()
    finally:
        measurer.close()
        store.close()
    return 0


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _await_devices(measurer: Measurer, stop: threading.Event) -> None:
    """Start or join Ray; a cluster's head may come up later than this process."""
    while not stop.is_set():
        try:
            measurer.devices()
            return
        except MeasurerUnavailable as fault:
            log.warning("waiting for Ray: %s", fault)
            stop.wait(2.0)


def _end_with_parent(stop: threading.Event) -> None:
    """The pipe on stdin closes when the parent dies, however it dies: then nobody would ever stop this process.

    Read without Python's buffer: its lock, held by this thread, would abort the interpreter's own end.
    """
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
