"""The devices of a host as the measurer sees them: their names, their children, what they are and what they can do."""

import hashlib
import pickle
import socket
from collections.abc import Sequence

from workers.child import ChildSpec
from workers.child_memory import HOST_SHARE
from workers.config import MeasurerConfig
from workers.device import DeviceSettings
from workers.device_probe import DeviceProbe
from workers.gpu_host import PREFIX, VISIBLE, Gpu
from workers.script import Scenario

RESOURCE = "device:"  # prefix of the Ray resource that stands for one device, one unit each

# A script that allocates without end must end soon, and harm nobody.
SCRIPTED_MEMORY_BYTES = 768 << 20


def device_ids(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The devices of this host: its CPU counts as one, a GPU goes by its UUID."""
    return (f"cpu:{socket.gethostname()}", *(gpu.uuid for gpu in gpus))


def is_gpu(device_id: str) -> bool:
    return device_id.startswith(PREFIX)


def devices_of(scenario: Scenario | None, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The devices that this host brings to a cluster: those of the script where it declares any."""
    declared = scenario.devices if scenario is not None else ()
    return tuple(d.device_id for d in declared) or device_ids(gpus)


def settings(device_id: str, config: MeasurerConfig) -> DeviceSettings:
    """What the measuring actor of a device needs. A script shares no lock with real measurements, nor with another
    script: what it answers does not depend on who else runs."""
    lock_name = device_id
    if config.scenario is not None:
        lock_name += ":script:" + hashlib.sha256(pickle.dumps(config.scenario)).hexdigest()[:16]
    return DeviceSettings(
        device_id,
        lock_name,
        str(config.lock_dir),
        _measuring_child(device_id, config),
        config.look_every_s,
        config.look_again_s,
        config.holder_ttl_s,
    )


def probe(device_id: str, config: MeasurerConfig) -> DeviceProbe:
    gpu = next((g for g in config.gpus if g.uuid == device_id), None) if config.scenario is not None else None
    environment = _environment(device_id, config)
    return DeviceProbe(device_id, config.cores, config.scenario, config.cache_dir, environment, gpu)


def _measuring_child(device_id: str, config: MeasurerConfig) -> ChildSpec:
    if config.scenario is not None:
        return ChildSpec("workers.measure_child:scripted_child", memory_limit_bytes=_memory(config))
    environment = _environment(device_id, config)
    if is_gpu(device_id):
        arguments: dict[str, object] = {"uuid": device_id, "peers": list(config.peers)}
        return ChildSpec("workers.measure_child:cuda_child", arguments, environment, _memory(config))
    arguments = {"cores": config.worker_cores, "peers": list(config.peers)}
    return ChildSpec("workers.measure_child:cpu_child", arguments, environment, _memory(config))


def builder_child(config: MeasurerConfig) -> ChildSpec:
    if config.scenario is not None:
        return ChildSpec("workers.scripted:scripted_builder", memory_limit_bytes=_memory(config))
    arguments = {"cache_dir": str(config.cache_dir / "builds")}
    # One builder a core: a compiler that threads by itself would only get in the way of the others. No GPU is shown to
    # it: a compiler that made a context there would disturb what is measured.
    environment = {"OMP_NUM_THREADS": "1", VISIBLE: ""}
    return ChildSpec("workers.build.child:make_handler", arguments, environment, _memory(config))


def _memory(config: MeasurerConfig) -> int:
    default = HOST_SHARE if config.scenario is None else SCRIPTED_MEMORY_BYTES
    return config.child_memory_bytes or default


def _environment(device_id: str, config: MeasurerConfig) -> dict[str, str]:
    """A GPU's child sees that GPU alone, whatever Ray set; a CPU's sees none.

    One OpenMP pool for torch and for ours, as wide as the worker's cores; threads are not bound: a bound caller
    shares a core with one of the pool's threads and halves the speed."""
    if is_gpu(device_id):
        return {VISIBLE: device_id, "OMP_NUM_THREADS": "1"}
    cores = str(config.worker_cores)
    return {
        VISIBLE: "",
        "OMP_NUM_THREADS": cores,
        "MKL_NUM_THREADS": cores,
        "OMP_PROC_BIND": "false",
        "OMP_DYNAMIC": "false",
    }
