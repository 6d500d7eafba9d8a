"""The Measurer on Ray: one actor per device, a pool of builders beside it. Ray lives here and in ray_actors only."""

import contextlib
import hashlib
import importlib
import logging
import os
import pickle
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

from tuner.ports import DeviceInfo, MeasurePolicy, MeasurerUnavailable, MeasureSession
from tuner.task import Task
from workers import host_devices
from workers.config import MeasurerConfig
from workers.host_devices import RESOURCE
from workers.ray_actors import builder_actors, device_actor
from workers.ray_session import RaySession
from workers.remote import BuilderPool, Cancelled, DeviceLost, RemoteDevice
from workers.scratch import make_scratch, sweep

_log = logging.getLogger(__name__)


class RayMeasurer:
    """See tuner.ports.Measurer. Starts or joins Ray at the first use; `close` gives everything back. Thread-safe."""

    def __init__(self, config: MeasurerConfig) -> None:
        self._config = config
        self._guard = threading.RLock()
        self._temp: Path | None = None
        self._started = False
        self._devices: dict[str, RemoteDevice] = {}
        self._builders: dict[str, BuilderPool] = {}  # by node, "" for one that may be anywhere
        self._sessions: list[RaySession] = []

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device of the cluster. The first call on a host measures its roofs, which takes seconds."""
        with self._guard:
            self._start()
            names = sorted(r.removeprefix(RESOURCE) for r in ray.cluster_resources() if r.startswith(RESOURCE))
            remotes = [self._remote(name) for name in names]
        with ThreadPoolExecutor(max(1, len(names))) as asking:  # roofs take seconds: of all devices at once
            return list(asking.map(self._info, names, remotes))

    def open(self, task: Task, device: DeviceInfo, policy: MeasurePolicy, seed: int) -> MeasureSession:
        """Raises MeasurerUnavailable, TaskNotOpened or ChildFailedToStart; ValueError for a policy that cannot be."""
        if device.target.kind == "cpu" and policy.cache != "warm":
            raise ValueError(f"cache: a CPU is measured warm, the policy says {policy.cache}")
        if device.target.kind == "cuda" and policy.cache != "cold":
            raise ValueError(f"cache: a GPU is measured cold, the policy says {policy.cache}")
        with self._guard:
            self._start()
            remote = self._remote(device.device_id)
            session = RaySession(device, remote, self._pool(device.device_id), task, policy, seed, self._config)
            self._sessions = [s for s in self._sessions if not s.closed] + [session]
        try:
            session.open()
        except DeviceLost as fault:
            session.close()
            raise MeasurerUnavailable(f"the measuring actor died: {fault}") from fault
        except Cancelled as fault:
            raise MeasurerUnavailable("the measurer was closed") from fault
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End sessions, builders and, where it was started here, Ray. Idempotent."""
        with self._guard:
            if not self._started:
                return
            for session in self._sessions:
                session.close()
            for pool in self._builders.values():
                pool.close()
            self._sessions, self._builders, self._devices, self._started = [], {}, {}, False
            ray.shutdown()
            if self._temp is not None:
                shutil.rmtree(self._temp, ignore_errors=True)
                self._temp = None

    # --- for tests and doctors: which processes work for a device ---

    def child_pid(self, device_id: str) -> int | None:
        pid: int | None = self._devices[device_id].control("child_pid")
        return pid

    def doing(self, device_id: str) -> str | None:
        doing: str | None = self._devices[device_id].control("doing")
        return doing

    def actor_pid(self, device_id: str) -> int:
        pid: int = self._devices[device_id].control("actor_pid")
        return pid

    def builder_child_pids(self, device_id: str) -> list[int | None]:
        return self._pool(device_id).child_pids()

    # --- Ray ---

    def _start(self) -> None:
        if self._started:
            return
        config = self._config
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by Ray's own processes; nothing is reported to anyone
        options: dict[str, Any] = {
            "namespace": config.namespace,
            "log_to_driver": False,
            "configure_logging": False,
            "logging_level": "error",
        }
        if config.address is None:
            sweep(config.temp_parent)
            self._temp = make_scratch(config.temp_parent, self)
            options |= {
                "num_cpus": max(config.builder_count, 1),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": config.object_store_bytes,
                "_temp_dir": str(self._temp),
                "resources": {RESOURCE + device_id: 1 for device_id in host_devices.device_ids(config.gpus)},
            }
        else:
            options["address"] = config.address
        _quieten_ray()
        try:
            ray.init(**options)
        except Exception as fault:  # Ray raises a bare Exception when a busy machine is slow to start its processes
            ray.shutdown()
            where = config.address or "on this machine"
            raise MeasurerUnavailable(f"Ray {where} cannot be reached or started: {fault}") from fault
        self._started = True
        if config.gpus and config.scenario is None:
            # Importing TVM and torch takes seconds: now, not at the first job.
            self._pool(config.gpus[0].uuid).warm("cuda")
            for gpu in config.gpus:
                self._remote(gpu.uuid).start("warm_up", False)

    def _remote(self, device_id: str) -> RemoteDevice:
        if device_id not in self._devices:
            settings = host_devices.settings(device_id, self._config)
            probe = host_devices.probe(device_id, self._config)
            tag = hashlib.sha256(pickle.dumps((settings, probe))).hexdigest()[:8]
            detached = self._config.address is not None

            def make() -> Any:
                return device_actor(f"{RESOURCE}{device_id}:{tag}", RESOURCE + device_id, settings, probe, detached)

            self._devices[device_id] = RemoteDevice(make, self._config.call_timeout_s)
        return self._devices[device_id]

    def _pool(self, device_id: str) -> BuilderPool:
        key = self._pool_key(device_id)
        if key not in self._builders:
            child = host_devices.builder_child(self._config)

            def make(count: int) -> Sequence[Any]:
                return builder_actors(count, child, key or None)

            self._builders[key] = BuilderPool(make, max(self._config.builder_count, 1))
        return self._builders[key]

    def _pool_key(self, device_id: str) -> str:
        """The node that the builders of a device are bound to, or none. On a CPU target they must be where they can be
        kept from disturbing the measuring; one host has one pool for all of its devices."""
        if self._config.address is None or host_devices.is_gpu(device_id):
            return ""
        node: str = self._remote(device_id).control("node_id")
        return node

    def _info(self, device_id: str, remote: RemoteDevice) -> DeviceInfo:
        for _ in range(2):
            with contextlib.suppress(DeviceLost):
                info: DeviceInfo = remote.control("info", timeout_s=self._config.start_timeout_s)
                return info
        raise MeasurerUnavailable(f"the measuring actor of device {device_id} dies at once")


def _quieten_ray() -> None:
    """Ray's notices go to our log, not to a user's terminal: it prints the death of a worker to stdout, where
    ``--json`` promises one document and nothing else, and no option of ray.init turns that off."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    worker: Any = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream = lambda data, ignore_prefix=False: _log.info("%s", data.get("lines"))
