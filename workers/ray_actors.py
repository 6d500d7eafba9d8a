"""The two kinds of actors: thin shells round `Device` and `Builder`, which know nothing of Ray.

Both are threaded, so that `cancel` and `abort` get through while a measurement or a build runs.
"""

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.ports import DeviceInfo
from workers.builder import Builder
from workers.child import ChildSpec
from workers.device import Device, DeviceSettings
from workers.device_probe import DeviceProbe

# Work (build, measure) is one call at a time, in the default group; the calls that must get through meanwhile go to
# this one.
CONTROL = "control"
_GROUPS = {CONTROL: 4}


class DeviceActor(Device):
    """One per device, found by name."""

    def __init__(self, settings: DeviceSettings, probe: DeviceProbe) -> None:
        super().__init__(settings)
        self._probe = probe
        self._info: DeviceInfo | None = None

    def info(self) -> DeviceInfo:
        """What the device is; its roofs are measured at the first call on this host, under the device's lock."""
        if self._info is None:
            self._info = self._probe.info(self.alone)
        return self._info

    def actor_pid(self) -> int:
        return os.getpid()

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def device_actor(name: str, resource: str, settings: DeviceSettings, probe: DeviceProbe, detached: bool) -> Any:
    """The device's actor, made where its resource is unless another driver made it already."""
    remote = ray.remote(num_cpus=0, concurrency_groups=_GROUPS)(DeviceActor)
    options: dict[str, Any] = {"name": name, "get_if_exists": True, "resources": {resource: 1}}
    if detached:
        options["lifetime"] = "detached"
    return remote.options(**options).remote(settings, probe)


def builder_actors(count: int, child: ChildSpec, node_id: str | None) -> Sequence[Any]:
    """`count` builders of one core each; on the node `node_id` where building must keep out of measuring's way.

    Ray is asked for half a CPU each: a cluster's GPUs and CPUs have pools of their own, which rarely work at the same
    time, and one that holds all CPUs would keep the other from ever starting."""
    remote = ray.remote(num_cpus=0.5, concurrency_groups=_GROUPS)(Builder)
    options: dict[str, Any] = {}
    if node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return [remote.options(**options).remote(child) for _ in range(count)]
