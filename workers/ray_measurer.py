"""The Measurer on Ray: one actor per device, a pool of builders beside it. Ray lives here and in ray_actors only."""

import contextlib
import hashlib
import importlib
import logging
import os
import pickle
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from tuner.ports import DeviceInfo, MeasurePolicy, MeasurerUnavailable, MeasureSession
from tuner.task import Task
from workers import cluster, host_devices
from workers.builder_pool import BuilderPool
from workers.config import MeasurerConfig
from workers.host_devices import RESOURCE
from workers.ray_actors import builder_actors, device_actor
from workers.ray_session import RaySession
from workers.remote import Cancelled, DeviceLost, RemoteDevice
from workers.roll_call import RollCall
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
        self._builders: dict[str, BuilderPool] = {}  # by host
        self._sessions: list[RaySession] = []
        self._roll_guard = threading.Lock()
        self._roll = RollCall(self._remote, config.start_timeout_s, config.silent_after_s)

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device of the cluster at this moment, those set aside too (`healthy`, `detail`). The first call on a
        host measures its roofs, which takes seconds."""
        with self._guard:
            self._start()
        with self._roll_guard:
            return self._roll.call(cluster.device_names())

    def open(self, task: Task, device: DeviceInfo, policy: MeasurePolicy, seed: int) -> MeasureSession:
        """Raises MeasurerUnavailable, TaskNotOpened or ChildFailedToStart; ValueError for a policy that cannot be."""
        if device.target.kind == "cpu" and policy.cache != "warm":
            raise ValueError(f"cache: a CPU is measured warm, the policy says {policy.cache}")
        if device.target.kind == "cuda" and policy.cache != "cold":
            raise ValueError(f"cache: a GPU is measured cold, the policy says {policy.cache}")
        with self._guard:
            self._start()
            remote = self._remote(device.device_id)
        try:
            pool = self._pool(str(remote.control("node_id")))
        except DeviceLost as fault:
            raise MeasurerUnavailable(f"the measuring actor died: {fault}") from fault
        session = RaySession(device, remote, pool, task, policy, seed, self._config)
        with self._guard:
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
            self._drop_scratch()

    def _end_leftovers(self) -> None:
        """Processes of a start that failed: Ray forgets them, and a second start beside them is slower still."""
        left = psutil.Process().children(recursive=True) if self._temp is not None else []
        for process in left:
            with contextlib.suppress(psutil.Error):
                if any(str(self._temp) in word for word in process.cmdline()):
                    process.kill()

    def _drop_scratch(self) -> None:
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

    def kill_actor(self, device_id: str) -> None:
        self._devices[device_id].kill()

    def builder_child_pids(self, device_id: str) -> list[int | None]:
        node: str = self._devices[device_id].control("node_id")
        return self._pool(node).child_pids()

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
                "resources": {RESOURCE + name: 1 for name in host_devices.devices_of(config.scenario, config.gpus)},
            }
        else:
            options["address"] = config.address
        _quieten_ray()
        _give_ray_time(config.start_timeout_s / 2)
        try:
            ray.init(**options)
        except Exception as fault:  # plain ones too: a start that took too long is a bare Exception of Ray's
            ray.shutdown()
            self._end_leftovers()
            self._drop_scratch()
            where = config.address or "on this machine"
            raise MeasurerUnavailable(f"Ray {where} cannot be reached or started: {fault}") from fault
        self._started = True
        if config.gpus and config.scenario is None and config.address is None:
            # Importing TVM and torch takes seconds: now, not at the first job.
            self._pool(ray.get_runtime_context().get_node_id()).warm("cuda")
            for gpu in config.gpus:
                self._remote(gpu.uuid).start("warm_up", False)

    def _remote(self, device_id: str) -> RemoteDevice:
        with self._guard:
            if device_id not in self._devices:
                settings = host_devices.settings(device_id, self._config)
                probe = host_devices.probe(device_id, self._config)
                tag = hashlib.sha256(pickle.dumps((settings, probe))).hexdigest()[:8]
                detached = self._config.address is not None

                def make() -> Any:
                    # An actor for a device that is not there would wait for it, and its callers with it.
                    if device_id not in cluster.device_names():
                        raise MeasurerUnavailable(f"device {device_id} has left the cluster")
                    return device_actor(f"{RESOURCE}{device_id}:{tag}", RESOURCE + device_id, settings, probe, detached)

                self._devices[device_id] = RemoteDevice(make, self._config.call_timeout_s)
            return self._devices[device_id]

    def _pool(self, node: str) -> BuilderPool:
        """The builders of a host, for all of its devices. MeasurerUnavailable when it has left."""
        count = max(1, min(self._config.builder_count, cluster.node_cores(node)))
        with self._guard:
            if node not in self._builders:
                child = host_devices.builder_child(self._config)

                def make(wanted: int) -> Sequence[Any]:
                    cluster.node_cores(node)  # raises where the host has left: a builder for it would never start
                    return builder_actors(wanted, child, node)

                self._builders[node] = BuilderPool(make, count)
            return self._builders[node]


def _quieten_ray() -> None:
    """Ray's notices go to our log, not to a user's terminal: it prints the death of a worker to stdout, where
    ``--json`` promises one document and nothing else, and no option of ray.init turns that off."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    worker: Any = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream = lambda data, ignore_prefix=False: _log.info("%s", data.get("lines"))


def _give_ray_time(seconds: float) -> None:
    """On a busy machine Ray's own node takes longer to appear than the 30 s that Ray waits for it; no option changes
    them. Here its look for the node (`services.get_node`, RuntimeError while it is not there) waits by itself."""
    services: Any = importlib.import_module("ray._private.services")
    look = getattr(services.get_node, "impatient", services.get_node)

    def get_node(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return look(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    get_node.impatient = look  # type: ignore[attr-defined]
    services.get_node = get_node
