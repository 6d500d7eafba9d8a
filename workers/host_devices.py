"""The devices of a host as the measurer sees them: their names, their children, what they are and what they can do."""

import dataclasses
import hashlib
import pickle
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_space.environment import EnvironmentIdentity
from tuner.ports import DeviceInfo, MeasurePolicy
from workers.child import ChildSpec
from workers.config import MeasurerConfig
from workers.device import DeviceSettings
from workers.script import Scenario

if TYPE_CHECKING:
    from workers.device import Device

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


def _measuring_child(config: MeasurerConfig) -> ChildSpec:
    if config.scenario is not None:
        return ChildSpec("workers.measure_child:scripted_child", memory_limit_bytes=_memory(config))
    return ChildSpec("workers.measure_child:cpu_child", {"cores": config.cores}, _environment(config), _memory(config))


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
    cores = str(config.cores or config.builder_count)
    return {"OMP_NUM_THREADS": cores, "MKL_NUM_THREADS": cores, "OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false"}


def identity_under(
    identity: EnvironmentIdentity, policy: MeasurePolicy, scenario: Scenario | None
) -> EnvironmentIdentity:
    """The identity of records taken under `policy`; what a script said is never mistaken for a measurement."""
    version = "scripted" if scenario is not None else policy.version
    return dataclasses.replace(identity, policy=f"{version}/{policy.cache}")


@dataclass(frozen=True)
class DeviceProbe:
    """Finds out what a device is, on its own host."""

    device_id: str
    config: MeasurerConfig

    def info(self, device: "Device") -> DeviceInfo:
        from workers.host import host_identity, host_target

        target = host_target(self.config.cores or None)
        identity = identity_under(host_identity(target), MeasurePolicy(), self.config.scenario)
        roofs = None if self.config.scenario is not None else device.roofs(self.config.cache_dir, identity)
        return DeviceInfo(self.device_id, target, identity, roofs)
