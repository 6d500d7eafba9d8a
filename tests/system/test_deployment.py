"""docker-compose.yml: valid against the compose specification, and its very commands run as plain processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.running_service import free_port
from tilewright.client import ApiError, Client, Unreachable

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-for-this-test-alone"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_the_file_is_valid_against_the_compose_specification() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_api_is_published_and_ray_is_on_a_network_without_a_way_out(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, s in services.items() if s.get("ports")} == {"api"}
    assert compose["networks"]["private"]["internal"] is True
    for name in ("postgres", "ray-head", "runner", "gpu-worker", "migrate"):
        assert services[name]["networks"] == ["private"]
    for name in ("ray-head", "runner", "gpu-worker"):
        assert services[name]["environment"]["RAY_AUTH_MODE"] == "token"


def test_nothing_runs_as_root_and_no_secret_stands_in_the_file(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["user"] not in ("root", "0", "0:0"), name
        assert service["cap_drop"] == ["ALL"], name
        assert not any("PASSWORD" in k and not k.endswith("_FILE") for k in service.get("environment", {})), name
    assert all(s["file"].startswith("./deploy/secrets/") for s in compose["secrets"].values())


def test_the_start_order_waits_for_health(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["api"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["runner"]["depends_on"]["ray-head"]["condition"] == "service_healthy"
    assert all("healthcheck" in services[name] for name in ("postgres", "api", "ray-head"))


class Deployment:
    """The compose file's commands and environment, with its host names and mounts put where this test has them."""

    def __init__(self, compose: dict[str, Any], folder: Path, database: str) -> None:
        self.services, self.folder = compose["services"], folder
        self.api_port, self.ray_port = free_port(), free_port()
        secrets = folder / "secrets"
        secrets.mkdir()
        (secrets / "database_url").write_text(database)
        (secrets / "api_keys").write_text(KEY + "\n")
        (secrets / "ray_token").write_text("b" * 64)
        self.places = {
            "/run/secrets": str(secrets),
            "ray-head:6379": f"{own_address()}:{self.ray_port}",
            "--port=6379": f"--port={self.ray_port}",
            "8400": str(self.api_port),
        }
        self.running: list[subprocess.Popen[bytes]] = []
        self.ray_folder = tempfile.mkdtemp(prefix="tw")  # short: a socket's path is limited to 107 bytes

    def _placed(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def environment(self, name: str) -> dict[str, str]:
        given = {k: self._placed(str(v)) for k, v in self.services[name].get("environment", {}).items()}
        folders = {"TILEWRIGHT_DATA": str(self.folder / "data"), "TILEWRIGHT_CACHE": str(self.folder / "cache")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, **folders, **given, "PATH": path, "RAY_TMPDIR": self.ray_folder}

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        command = [self._placed(str(word)) for word in self.services[name]["command"]]
        with (self.folder / f"{name}.log").open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def stop(self) -> None:
        family = [c for p in self.running if psutil.pid_exists(p.pid) for c in _children(p.pid)]
        for process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        for left in psutil.wait_procs(family, timeout=10)[1]:
            left.kill()
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in self.folder.glob("*.log"))


def own_address() -> str:
    """The address that Ray's head takes as its own: the one this host would send from (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def deployment(
    compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, postgres_url: str
) -> Iterator[Deployment]:
    running = Deployment(compose, tmp_path_factory.mktemp("d"), postgres_url)
    yield running
    running.stop()


@pytest.mark.postgres
def test_the_commands_of_the_file_tune_a_shape_on_postgresql_and_a_ray_head(deployment: Deployment) -> None:
    assert deployment.start("migrate").wait(120) == 0, deployment.logs()
    deployment.start("ray-head")
    program, *rest = deployment.services["ray-head"]["healthcheck"]["test"][1:]
    health = [str(Path(sys.executable).parent / program), *map(deployment._placed, rest)]
    environment = deployment.environment("ray-head")
    _wait(lambda: subprocess.run(health, env=environment, capture_output=True, check=False).returncode == 0, deployment)
    for name in ("api", "gpu-worker", "runner"):
        deployment.start(name)
    url = f"http://127.0.0.1:{deployment.api_port}"
    with Client(url) as stranger:
        _wait(lambda: _answer(stranger, "/health/live") is not None, deployment)
        with pytest.raises(ApiError) as refused:
            stranger.get("/v1/jobs")
        assert refused.value.status == 401
    workload = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "float32"}
    with Client(url, KEY) as client:
        _wait(lambda: _answer(client, "/health/ready") is not None, deployment)
        job = client.submit({"workload": workload, "max_trials": 4, "target": "cpu"})["id"]
        _wait(lambda: client.job(job)["state"] in ("completed", "failed"), deployment)
        assert client.job(job)["state"] == "completed", client.job(job)
        assert client.best(workload, target="cpu")["latency_s"] > 0


def _answer(client: Client, path: str) -> object:
    try:
        return client.get(path)
    except (ApiError, Unreachable):
        return None


def _wait(condition: Any, deployment: Deployment, limit_s: float = 150.0) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.5)
    raise AssertionError(deployment.logs())
