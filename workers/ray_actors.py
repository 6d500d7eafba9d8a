"""The two kinds of actors: thin shells round `Device` and `Builder`, which know nothing of Ray.

Both are threaded, so that `cancel` and `abort` get through while a measurement or a build runs.
"""

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.ports import DeviceInfo
from workers.builder import Builder
from workers.child import ChildSpec
from workers.device import Device, DeviceSettings
from workers.device_probe import DeviceProbe
from workers.scripted_devices import by_id

# Work (build, measure) is one call at a time, in the default group; the calls that must get through meanwhile go to
# CONTROL. INFO has a group of its own: the first of its calls may take minutes, and must not hold up the others.
CONTROL = "control"
INFO = "info"
_GROUPS = {CONTROL: 4, INFO: 1}

# A device that cannot be used at all (no driver, no compiler) is asked again after so long: each time is a process.
_UNUSABLE_S = 120.0

_log = logging.getLogger(__name__)


class DeviceActor(Device):
    """One per device, found by name."""

    def __init__(self, settings: DeviceSettings, probe: DeviceProbe) -> None:
        super().__init__(settings)
        self._probe = probe
        self._info: DeviceInfo | None = None
        self._ask_again = 0.0
        self._unfit = ""
        self._looks = 0

    def info(self) -> DeviceInfo:
        """What the device is, and whether it is fit to measure. The first call on a host measures its roofs, under the
        device's lock."""
        if self._info is None or (not self._info.healthy and time.monotonic() > self._ask_again):
            self._info = self._probe.info(self.alone)
            self._ask_again = time.monotonic() + _UNUSABLE_S
            if self._info.healthy:
                self._look()
                threading.Thread(target=self._look_now_and_then, name="self-test", daemon=True).start()
        if not self._unfit:
            return self._info
        return dataclasses.replace(self._info, healthy=False, detail=self._unfit)

    def _look(self) -> None:
        scenario = self._probe.scenario
        device = by_id(scenario.devices, self._probe.device_id) if scenario is not None else None
        scripted = None
        if scenario is not None:
            scripted = device.finding(self._looks).to_json() if device is not None else {}
        found = self.self_test(scripted)
        if found is None:
            return  # in use: what it measures is checked by itself
        self._looks += 1
        if found.verdict != self._unfit:
            _log.warning("device %s: %s", self._probe.device_id, found.verdict or "fit again")
        self._unfit = found.verdict

    def _look_now_and_then(self) -> None:
        while True:
            time.sleep(self._settings.look_again_s if self._unfit else self._settings.look_every_s)
            self._look()

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


def builder_actors(count: int, child: ChildSpec, node_id: str) -> Sequence[Any]:
    """`count` builders on the node `node_id`, where the device is: its compilers are that host's, and on a CPU they are
    kept from disturbing the measuring.

    They reserve no CPU of Ray's: a second driver's builders would wait for ever for what the first one's hold.
    """
    remote = ray.remote(num_cpus=0, concurrency_groups=_GROUPS)(Builder)
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return [remote.options(scheduling_strategy=strategy).remote(child) for _ in range(count)]
