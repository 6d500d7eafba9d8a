"""A tilewright service as a user starts it: its own processes, its own folders, a free port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from tilewright.client import ApiError, Client, JsonObject, Unreachable

READY_S = 150.0


class RunningService:
    """`tilewright serve` on a database in `folder`, or at `database`; `script` stands in for compiler and device where
    given, `environment` changes variables of its processes."""

    def __init__(
        self,
        folder: Path,
        script: Mapping[str, Any] | None = None,
        *more: str,
        lease_s: float = 4.0,
        database: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.database = database or f"sqlite:///{folder / 'tilewright.db'}"
        self._changes = dict(environment or {})
        self.log = folder / "serve.log"
        self.arguments = ["--db", self.database, "--port", str(self.port), "--lease-s", str(lease_s), *more]
        if script is not None:
            file = folder / "script.json"
            file.write_text(json.dumps(script))
            self.arguments += ["--measurer", f"scripted:{file}"]
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(f"http://127.0.0.1:{self.port}", timeout_s=60.0)

    @property
    def environment(self) -> dict[str, str]:
        folders = {"TILEWRIGHT_DATA": str(self.folder), "TILEWRIGHT_CACHE": str(self.folder / "cache")}
        return {**os.environ, **folders, **self._changes}

    def start(self) -> Self:
        with self.log.open("ab") as out:
            command = [sys.executable, "-m", "tilewright", "serve", *self.arguments]
            self.process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            self.wait(lambda: self.is_ready(), READY_S, "ready")
        except BaseException:
            self.stop()  # nobody else would: `with` has not been entered
            raise
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the service ended: {self.log.read_text()[-3000:]}")
        # Without a runner of its own nothing makes it ready; it answers all the same.
        path = "/health/live" if "--no-runner" in self.arguments else "/health/ready"
        try:
            return self.client.get(path) is not None
        except (ApiError, Unreachable):
            return False

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()  # else it would go on starting runners long after the test
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()

    def stop(self) -> None:
        """As Ctrl-C would; whatever is left of its processes after that is a fault of the service."""
        if self.process is None or self.process.poll() is not None:
            return
        family = self.family()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=20)
        for left in alive:
            left.kill()
        assert not alive, f"left running: {alive}"

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, part: str) -> list[psutil.Process]:
        """The service's processes whose command line holds `part`."""
        found = []
        for process in self.family():
            try:
                if any(part in word for word in process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def submit(self, **body: Any) -> str:
        body.setdefault("target", "cpu")
        if "workload" not in body and "tasks" not in body:
            body["workload"] = {"op": "gemm", "m": 256, "n": 256, "k": 256, "dtype": "float32"}
        job: str = self.client.submit(body)["id"]
        return job

    def finished(self, job: str, limit_s: float = 120.0) -> JsonObject:
        return self.wait_state(job, ("completed", "failed", "cancelled"), limit_s)

    def wait_state(self, job: str, states: tuple[str, ...], limit_s: float = 60.0) -> JsonObject:
        self.wait(lambda: self.client.job(job)["state"] in states, limit_s, f"{job} in {states}")
        return self.client.job(job)

    def wait_trials(self, job: str, count: int, limit_s: float = 60.0) -> None:
        self.wait(lambda: self.client.job(job)["trials"]["done"] >= count, limit_s, f"{count} trials of {job}")

    def trials(self, job: str) -> list[JsonObject]:
        return list(self.client.pages(f"/v1/jobs/{job}/trials", {"limit": 100}))

    def wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.1)
        raise AssertionError(f"not within {limit_s:.0f} s: {what}\n{self.log.read_text()[-3000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_tilewright(
    service: RunningService, *arguments: str, limit_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """A `tilewright` command beside the service, with the same folders."""
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(
        command, env=service.environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
