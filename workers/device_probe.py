"""What a device is and how fast it can be, found out once on its own host and kept on disk."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from search_space.environment import EnvironmentIdentity
from search_space.target import Target
from tuner.ports import DeviceInfo, MeasurePolicy, MeasurerUnavailable
from tuner.roofs import Roofs
from workers import gpu_host, host
from workers.build.result import BuildToolMissing
from workers.child import ChildProcess, ChildSpec
from workers.child_end import Failure
from workers.gpu_host import Gpu
from workers.script import Scenario
from workers.scripted_devices import by_id

PROBE_TIMEOUT_S = 180.0
_log = logging.getLogger(__name__)

Json = Mapping[str, object]
Alone = Callable[[], AbstractContextManager[None]]


class ProbeFailed(MeasurerUnavailable):
    """The host could not be identified or its roofs not measured; the message says why."""


class ToolMissing(ProbeFailed):
    """The host lacks what builds programs; everything else about it can be told."""


def identity_under(
    identity: EnvironmentIdentity, policy: MeasurePolicy, scenario: Scenario | None
) -> EnvironmentIdentity:
    """The identity of records taken under `policy`; what a script said is never mistaken for a measurement."""
    version = "scripted" if scenario is not None else policy.version
    return dataclasses.replace(identity, policy=f"{version}/{policy.cache}")


@dataclass(frozen=True)
class DeviceProbe:
    """`cores` 0: all that may be used. The child that loads tvm and torch is only started for what is not kept yet.
    `gpu`: what a scripted GPU says of itself, since no real one need be there."""

    device_id: str
    cores: int
    scenario: Scenario | None
    cache_dir: Path
    environment: Mapping[str, str]
    gpu: Gpu | None = None

    def info(self, alone: Alone) -> DeviceInfo:
        """`alone` holds the device while its roofs are measured. Raises ProbeFailed for the CPU; a GPU that cannot be
        used is told as an unhealthy device, so that the others go on."""
        if self.scenario is not None and (scripted := by_id(self.scenario.devices, self.device_id)) is not None:
            return scripted.info()
        return self._gpu(alone) if self.device_id.startswith(gpu_host.PREFIX) else self._cpu(alone)

    def _gpu(self, alone: Alone) -> DeviceInfo:
        if self.scenario is not None and self.gpu is not None:
            identity = identity_under(self.gpu.identity("scripted"), MeasurePolicy(cache="cold"), self.scenario)
            return DeviceInfo(self.device_id, self.gpu.target(), identity, None)
        told = self._ask({"do": "identify_gpu"}, contextlib.nullcontext)
        target = Target.from_json(_mapping(told["target"]))
        identity = EnvironmentIdentity.from_json(_mapping(told["identity"]))
        identity = identity_under(identity, MeasurePolicy(cache="cold"), None)
        if told["missing"]:
            _log.warning("%s: %s", self.device_id, told["missing"])
            return DeviceInfo(self.device_id, target, identity, None, False, str(told["missing"]))
        try:
            return DeviceInfo(self.device_id, target, identity, self._roofs(target, identity, alone))
        except ProbeFailed as fault:
            _log.warning("%s cannot be used: %s", self.device_id, fault)
            return DeviceInfo(self.device_id, target, identity, None, False, str(fault))

    def _cpu(self, alone: Alone) -> DeviceInfo:
        told = self._kept(f"host-{_fingerprint()}", {"do": "identify"}, contextlib.nullcontext)
        target = Target.from_json(_mapping(told["target"]))
        identity = EnvironmentIdentity.from_json(_mapping(told["identity"]))
        if self.cores:
            target = dataclasses.replace(target, cores=self.cores)
            identity = dataclasses.replace(identity, cores=self.cores)
        identity = identity_under(identity, MeasurePolicy(), self.scenario)
        if self.scenario is not None:
            return DeviceInfo(self.device_id, target, identity, None)
        return DeviceInfo(self.device_id, target, identity, self._roofs(target, identity, alone))

    def _roofs(self, target: Target, identity: EnvironmentIdentity, alone: Alone) -> Roofs | None:
        """Kept from an earlier start, unless the machine was busy then: a roof that others had a part of is too low,
        so it is measured again and the higher counts. None where this host has no compiler: its jobs then say so."""
        path = self.cache_dir / f"roofs-{identity.key}.json"
        kept = _read(path)
        before = Roofs.from_json(_mapping(kept["roofs"])) if kept is not None else None
        if kept is not None and before is not None and float(str(kept.get("load", math.inf))) <= target.cores:
            return before
        load = os.getloadavg()[0]
        try:
            told = self._ask({"do": "roofs", "target": target.to_json()}, alone)
        except ToolMissing as fault:
            _log.warning("%s: no roofs are known, and no candidate can be built", fault)
            return before
        roofs = Roofs.from_json(_mapping(told["roofs"]))
        if before is not None:
            roofs = _higher(roofs, before)
        _write(path, {"roofs": roofs.to_json(), "load": load})
        return roofs

    def _kept(self, name: str, request: Json, holding: Alone) -> Json:
        """The answer to `request` as it was kept under `name`, or a child's, kept from now on."""
        path = self.cache_dir / f"{name}.json"
        if (kept := _read(path)) is not None:
            return kept
        answer = self._ask(request, holding)
        _write(path, answer)
        return answer

    def _ask(self, request: Json, holding: Alone) -> Json:
        spec = ChildSpec("workers.host_probe:make_handler", environment=self.environment)
        with ChildProcess(spec) as child, holding():
            reply = child.request(request, timeout_s=PROBE_TIMEOUT_S)
        if isinstance(reply, Failure):
            kind = ToolMissing if reply.error_type == BuildToolMissing.__name__ else ProbeFailed
            raise kind(f"{request['do']}: {reply.error_type} {reply.message}")
        return reply.message


def _higher(one: Roofs, two: Roofs) -> Roofs:
    return Roofs(
        {dtype: max(rate, two.flops_per_s.get(dtype, 0.0)) for dtype, rate in one.flops_per_s.items()},
        max(one.memory_bytes_per_s, two.memory_bytes_per_s),
        max(one.cache_bytes_per_s, two.cache_bytes_per_s),
        one.cache_bytes,
    )


def _write(path: Path, data: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(data))
    fresh.replace(path)  # in one step: another process may read it now


def _fingerprint() -> str:
    """Everything that decides what `identify` answers, without loading tvm."""
    with open("/proc/cpuinfo") as file:
        info = host.cpu_info(file.read())
    parts = (
        host.model_name(info),
        host.llvm_features(info),
        host.usable_cores(),
        host.memory_bytes(),
        host.system_name(),
        metadata.version("apache-tvm"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _read(path: Path) -> Json | None:
    try:
        return _mapping(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AssertionError):
        _log.warning("%s cannot be read: it is made again", path)
        return None


def _mapping(value: object) -> Json:
    assert isinstance(value, Mapping)
    return value
