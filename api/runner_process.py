"""Keeps a runner process alive beside the HTTP service."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

log = logging.getLogger("tilewright.serve")

RESTART_S = 1.0
STOP_S = 20.0


class RunnerProcess:
    """Starts `python -m api.runner`, and again whenever it dies; its jobs go on from what was committed.

    The runner ends by itself when this process is gone: it reads a pipe that only this process holds open.
    """

    def __init__(
        self,
        db: str,
        measurer: str,
        ray: str | None,
        cores: int | None,
        lease_s: float,
        jobs: int = 1,
        peers: Sequence[str] = (),
        log_format: str = "text",
    ) -> None:
        # The database URL may hold a password: by the environment, not by the argument list that `ps` shows.
        self._environment = {"TILEWRIGHT_DB": db}
        self._command = [sys.executable, "-m", "api.runner", "--parent-stdin", "--measurer", measurer]
        self._command += ["--lease-s", str(lease_s), "--jobs", str(jobs), "--log-format", log_format]
        if ray is not None:
            self._command += ["--ray", ray]
        if cores is not None:
            self._command += ["--cores", str(cores)]
        self._command += [word for peer in peers for word in ("--peer", peer)]
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="runner-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the runner: its job is given back, its devices are freed. Idempotent."""
        self._stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
        self._thread.join(STOP_S)
        if process is not None and process.poll() is None:
            log.warning("the runner did not end within %.0f s: killed", STOP_S)
            process.kill()
            process.wait()

    def _keep(self) -> None:
        while not self._stop.is_set():
            environment = {**os.environ, **self._environment}
            environment.pop("TILEWRIGHT_DB_FILE", None)
            self._process = subprocess.Popen(self._command, env=environment, stdin=subprocess.PIPE)
            status = self._process.wait()
            if not self._stop.is_set():
                log.warning("the runner ended with status %d: started again", status)
                self._stop.wait(RESTART_S)
