"""The devices of a host as the measurer sees them: their names, their children, what they are and what they can do."""

import dataclasses
import hashlib
import json
import logging
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tuner.ports import DeviceInfo, MeasurePolicy
from tuner.roofs import Roofs
from workers.child import ChildProcess, ChildSpec, Failure
from workers.config import MeasurerConfig
from workers.device import DeviceSettings
from workers.script import Scenario

PROBE_TIMEOUT_S = 120.0
_log = logging.getLogger(__name__)
RESOURCE = "device:"  # prefix of the Ray resource that stands for one device, one unit each

# A script that allocates without end must end soon, and harm nobody.
SCRIPTED_MEMORY_BYTES = 768 << 20


def device_ids() -> tuple[str, ...]:
    """The devices of this host: its CPU counts as one."""
    return (f"cpu:{socket.gethostname()}",)


def settings(device_id: str, config: MeasurerConfig) -> DeviceSettings:
    """What the measuring actor of a device needs. A script shares no lock with real measurements, nor with another
    script: what it answers does not depend on who else runs."""
    lock_name = device_id
    if config.scenario is not None:
        lock_name += ":script:" + hashlib.sha256(pickle.dumps(config.scenario)).hexdigest()[:16]
    return DeviceSettings(device_id, lock_name, str(config.lock_dir), _measuring_child(config))


def probe(device_id: str, config: MeasurerConfig) -> "DeviceProbe":
    return DeviceProbe(device_id, config.cores, config.scenario, config.cache_dir, _environment(config))


def _measuring_child(config: MeasurerConfig) -> ChildSpec:
    if config.scenario is not None:
        return ChildSpec("workers.measure_child:scripted_child", memory_limit_bytes=_memory(config))
    return ChildSpec(
        "workers.measure_child:cpu_child", {"cores": config.worker_cores}, _environment(config), _memory(config)
    )


def builder_child(device: DeviceInfo, config: MeasurerConfig) -> ChildSpec:
    if config.scenario is not None:
        return ChildSpec("workers.scripted:scripted_builder", memory_limit_bytes=_memory(config))
    arguments = {"cache_dir": str(config.cache_dir / "builds")}
    # One builder a core: a compiler that threads by itself would only get in the way of the others.
    return ChildSpec("workers.build.child:make_handler", arguments, {"OMP_NUM_THREADS": "1"}, _memory(config))


def _memory(config: MeasurerConfig) -> int:
    if config.child_memory_bytes or config.scenario is None:
        return config.child_memory_bytes
    return SCRIPTED_MEMORY_BYTES


def _environment(config: MeasurerConfig) -> dict[str, str]:
    """One OpenMP pool for torch and for ours, as wide as the worker's cores; threads are not bound: a bound caller
    shares a core with one of the pool's threads and halves the speed."""
    cores = str(config.worker_cores)
    return {"OMP_NUM_THREADS": cores, "MKL_NUM_THREADS": cores, "OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false"}


def identity_under(
    identity: EnvironmentIdentity, policy: MeasurePolicy, scenario: Scenario | None
) -> EnvironmentIdentity:
    """The identity of records taken under `policy`; what a script said is never mistaken for a measurement."""
    version = "scripted" if scenario is not None else policy.version
    return dataclasses.replace(identity, policy=f"{version}/{policy.cache}")


class ProbeFailed(RuntimeError):
    """The host could not be identified or its roofs not measured; the message says why."""


@dataclass(frozen=True)
class DeviceProbe:
    """Finds out what a device is, on its own host, in a child of its own. Roofs are kept on disk, by identity."""

    device_id: str
    cores: int
    scenario: Scenario | None
    cache_dir: Path
    environment: Mapping[str, str]

    def info(self, alone: Callable[[], AbstractContextManager[None]]) -> DeviceInfo:
        """`alone` holds the device while its roofs are measured. Raises ProbeFailed."""
        spec = ChildSpec("workers.host_probe:make_handler", environment=self.environment)
        with ChildProcess(spec) as child:
            told = _ask(child, {"do": "identify"})
            target = Target.from_json(_mapping(told["target"]))
            identity = EnvironmentIdentity.from_json(_mapping(told["identity"]))
            if self.cores:
                target = dataclasses.replace(target, cores=self.cores)
                identity = dataclasses.replace(identity, cores=self.cores)
            identity = identity_under(identity, MeasurePolicy(), self.scenario)
            roofs = None if self.scenario is not None else self._roofs(child, target, identity, alone)
        return DeviceInfo(self.device_id, target, identity, roofs)

    def _roofs(
        self,
        child: ChildProcess,
        target: Target,
        identity: EnvironmentIdentity,
        alone: Callable[[], AbstractContextManager[None]],
    ) -> Roofs:
        path = self.cache_dir / "roofs" / f"{identity.key}.json"
        if (kept := _read_roofs(path)) is not None:
            return kept
        with alone():
            told = _ask(child, {"do": "roofs", "target": target.to_json()})
        roofs = Roofs.from_json(_mapping(told["roofs"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(roofs.to_json()))
        fresh.replace(path)  # in one step: another process may read it now
        return roofs


def _read_roofs(path: Path) -> Roofs | None:
    try:
        return Roofs.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        _log.warning("%s cannot be read: the roofs are measured again", path)
        return None


def _ask(child: ChildProcess, message: Mapping[str, object]) -> Mapping[str, object]:
    reply = child.request(message, timeout_s=PROBE_TIMEOUT_S)
    if isinstance(reply, Failure):
        raise ProbeFailed(f"{message['do']}: {reply.error_type} {reply.message}")
    return reply.message


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value
