"""A whole cluster as plain processes: PostgreSQL, Ray's head and hosts, runners, the API; each is started again when it
ends, as a container with `restart: unless-stopped` is."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from db import migrate
from tests.support.postgres_server import PostgresServer
from tests.support.running_service import free_port
from tilewright.client import ApiError, Client, Unreachable
from workers.node import own_address

# A killed server must come back with every commit that it acknowledged; the host itself does not crash here.
DURABLE = ("fsync=off", "synchronous_commit=on", "shared_buffers=64MB", "max_connections=100")
_LOOK_S = 0.25


@dataclass(frozen=True)
class Plan:
    """`hosts`: the devices of each host of the cluster; the head's own where there is no other. `lease_s` is the
    runners'; `script` tells what candidates and devices do."""

    hosts: Sequence[Sequence[str]]
    script: Mapping[str, object]
    runners: int = 2
    jobs_at_a_time: int = 3
    lease_s: float = 4.0


@dataclass
class Kept:
    """One process and how it is started; `starts` counts them."""

    name: str
    command: Sequence[str]
    needs: Callable[[], bool] = lambda: True  # what must be there before it is started again
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None


class World:
    """`with World(plan, folder) as world`: everything is up inside, and gone after."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.ledgers = folder / "ledgers"
        self.ledgers.mkdir(parents=True)
        (folder / "script.json").write_text(json.dumps(plan.script))
        (folder / "ray_token").write_text("c" * 64)
        self.ray_folder = tempfile.mkdtemp(prefix="tw")  # short: a socket's path is limited to 107 bytes
        self.postgres = PostgresServer(DURABLE)
        self.api_port, self.ray_port = free_port(), free_port()
        self.ray_address = f"{own_address()}:{self.ray_port}"
        self.kept: dict[str, Kept] = {}
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.database = ""

    def __enter__(self) -> "World":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.postgres.start()
        self.database = self.postgres.create_database("chaos")
        migrate(self.database)
        measurer = ["--measurer", f"scripted:{self.folder / 'script.json'}"]
        ray, python = ["--ray", self.ray_address], [sys.executable, "-m"]
        head_devices = self.plan.hosts[0] if len(self.plan.hosts) == 1 else ()
        self._add("head", head_command(self.ray_port, head_devices))
        if not head_devices:
            for i, devices in enumerate(self.plan.hosts):
                self.add_host(f"host-{i}", devices)
        self._add("api", [*python, "tilewright", "serve", "--no-runner", "--port", str(self.api_port)])
        slots = ["--jobs", str(self.plan.jobs_at_a_time), "--lease-s", str(self.plan.lease_s)]
        for i in range(self.plan.runners):
            runner = [*python, "benchmarks.chaos_runner", str(self.ledgers), *ray, *measurer, *slots]
            self._add(f"runner-{i}", runner, self.head_answers)
        self._keeper.start()

    def add_host(self, name: str, devices: Sequence[str]) -> None:
        """A host that joins the cluster with these of the script's devices; it is started by the keeper."""
        command = [sys.executable, "-m", "tilewright", "worker", "--ray", self.ray_address, "--cores", "1"]
        command += ["--measurer", f"scripted:{self.folder / 'script.json'}"]
        self._add(name, [*command, *(word for d in devices for word in ("--device", d))], self.head_answers)

    def _add(self, name: str, command: Sequence[str], needs: Callable[[], bool] = lambda: True) -> None:
        self.kept[name] = Kept(name, command, needs)

    @property
    def environment(self) -> dict[str, str]:
        folders = {"TILEWRIGHT_DATA": str(self.folder), "TILEWRIGHT_CACHE": str(self.folder / "cache")}
        ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "ray_token")}
        # How long hosts and drivers wait for a head that is gone before they end, to be started again.
        ray |= {"RAY_TMPDIR": self.ray_folder, "RAY_gcs_rpc_server_reconnect_timeout_s": "8"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, **folders, **ray, "PATH": path, "TILEWRIGHT_DB": self.database}

    def _keep(self) -> None:
        """Start what is not running, as soon as what it needs is there."""
        while not self._ending.wait(_LOOK_S):
            if self.postgres.pid is None:
                self.postgres.start_again()
            for kept in list(self.kept.values()):
                if kept.pid is None and not self._ending.is_set() and kept.needs():
                    self._launch(kept)

    def _launch(self, kept: Kept) -> None:
        with (self.folder / f"{kept.name}.log").open("ab") as log:
            kept.process = subprocess.Popen(
                kept.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=Path(__file__).parent.parent,
            )
        kept.starts += 1

    def head_answers(self) -> bool:
        """Whether something listens where Ray's head should."""
        host, _, port = self.ray_address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            return False
        return True

    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.api_port}", timeout_s=20.0)

    def wait_ready(self, devices: int, limit_s: float = 240.0) -> None:
        """Until all runners tell of `devices` healthy devices each."""
        end = time.monotonic() + limit_s
        with self.client() as client:
            while time.monotonic() < end:
                try:
                    well = [w for w in client.get("/v1/workers")["items"] if w["alive"] and w["healthy"]]
                except (ApiError, Unreachable):
                    well = []
                if len({(w["runner_id"], w["device_id"]) for w in well}) >= devices * self.plan.runners:
                    return
                time.sleep(0.25)
        raise RuntimeError(f"not ready within {limit_s:.0f} s:\n{self.logs()}")

    def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait for it, over faults of the service too; RuntimeError, with the logs, when it does not come."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            with contextlib.suppress(ApiError, Unreachable):
                if condition():
                    return
            time.sleep(0.25)
        raise RuntimeError(f"not within {limit_s:.0f} s: {what}\n{self.logs()}")

    def tree(self, name: str) -> list[psutil.Process]:
        """The processes of one of the kept ones, itself first; PostgreSQL's for "postgres"."""
        pid = self.postgres.pid if name == "postgres" else self.kept[name].pid
        try:
            first = psutil.Process(pid) if pid is not None else None
            return [first, *first.children(recursive=True)] if first is not None else []
        except psutil.NoSuchProcess:
            return []

    def titled(self, title: str) -> list[psutil.Process]:
        """Processes of the cluster's hosts whose command line starts with `title`."""
        found = []
        for name in self.kept:
            for process in self.tree(name) if name.startswith(("head", "host")) else []:
                try:
                    if " ".join(process.cmdline()).startswith(title):
                        found.append(process)
                except psutil.Error:
                    continue
        return found

    def logs(self) -> str:
        parts = [f"--- {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in sorted(self.folder.glob("*.log"))]
        return "\n".join(parts)

    def end(self, name: str) -> None:
        """End one of the kept processes for good."""
        kept = self.kept.pop(name)
        if kept.process is not None and kept.pid is not None:
            kept.process.terminate()
            try:
                kept.process.wait(30)
            except subprocess.TimeoutExpired:
                kept.process.kill()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join(90)
        family = [p for name in self.kept for p in self.tree(name)]
        hosts = [p for name in self.kept if name.startswith(("head", "host")) for p in self.tree(name)]
        for process in hosts:  # a Ray host would drain for half a minute first; nothing of it is wanted any more
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for kept in self.kept.values():
            if kept.pid is not None:
                os.kill(kept.pid, signal.SIGCONT)
                os.kill(kept.pid, signal.SIGTERM)
        for process in psutil.wait_procs(family, timeout=15)[1]:
            process.kill()
        psutil.wait_procs(family, timeout=10)
        self.postgres.stop()
        shutil.rmtree(self.ray_folder, ignore_errors=True)


def head_command(port: int, devices: Sequence[str]) -> list[str]:
    """`ray start --head`, with devices of its own where there is no other host."""
    resources = json.dumps({f"device:{d}": 1 for d in devices})
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=1"]
    return [*command, f"--resources={resources}", "--include-dashboard=false", "--disable-usage-stats", "--block"]
