"""Devices that a script declares: of any kind and number, on any host of a cluster, with what their self-tests find.

They are as real as a script's candidates: each has its measuring actor, its child and its lock; only what the device
would do is told instead of done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from search_space import fields
from search_space.environment import EnvironmentIdentity
from search_space.errors import InvalidField
from search_space.target import KINDS, Target
from tuner.ports import DeviceInfo
from workers.self_test import SelfTest

_FIELDS = frozenset({"id", "kind", "arch", "model", "cores", "memory_bytes", "shared_bytes", "self_tests"})


@dataclass(frozen=True)
class ScriptedDevice:
    """`self_tests`: what each look at the device finds, in order; the last one again and again, a fit device where
    none is given."""

    device_id: str
    target: Target
    self_tests: tuple[SelfTest, ...] = ()

    def info(self) -> DeviceInfo:
        t = self.target
        tvm = metadata.version("apache-tvm")
        policy = "scripted/cold" if t.kind == "cuda" else "scripted/warm"
        identity = EnvironmentIdentity(
            t.kind,
            t.model,
            t.arch,
            t.cores,
            "scripted",
            "scripted" if t.kind == "cuda" else "",
            tvm,
            "scripted",
            policy,
        )
        return DeviceInfo(self.device_id, t, identity, None)

    def finding(self, look: int) -> SelfTest:
        """What look number `look` (from 0) finds."""
        return self.self_tests[min(look, len(self.self_tests) - 1)] if self.self_tests else SelfTest()


def parse_devices(data: object) -> tuple[ScriptedDevice, ...]:
    """The script's `devices`. InvalidField with the dotted path."""
    if not isinstance(data, list):
        raise InvalidField("devices", "must be a list")
    devices = []
    for i, item in enumerate(data):
        try:
            devices.append(_device(item))
        except InvalidField as fault:
            raise fault.under(f"devices.{i}") from None
    ids = [d.device_id for d in devices]
    for i, device_id in enumerate(ids):
        if device_id in ids[:i]:
            raise InvalidField(f"devices.{i}.id", f"{device_id!r} is there twice")
    return tuple(devices)


def _device(data: object) -> ScriptedDevice:
    if not isinstance(data, Mapping):
        raise InvalidField("", "must be an object")
    fields.only(data, _FIELDS)
    texts = {}
    for name, default in (("id", None), ("arch", "scripted"), ("model", "scripted device")):
        text = data.get(name, default)
        if not isinstance(text, str) or not 0 < len(text) <= 200:
            raise InvalidField(name, "must be a short string")
        texts[name] = text
    target = Target(
        fields.choice(data, "kind", KINDS, "cpu"),
        texts["arch"],
        texts["model"],
        fields.integer(data, "cores", 2),
        vector_bits=256,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=16 << 20,
        memory_bytes=fields.integer(data, "memory_bytes", 16 << 30, high=fields.INT64_MAX),
        shared_bytes=fields.integer(data, "shared_bytes", 227 << 10, low=0, high=fields.INT64_MAX),
        features=("avx2", "fma"),
    )
    return ScriptedDevice(texts["id"], target, _self_tests(data.get("self_tests", [])))


def _self_tests(data: object) -> tuple[SelfTest, ...]:
    if not isinstance(data, list):
        raise InvalidField("self_tests", "must be a list")
    tests = []
    for i, item in enumerate(data):
        try:
            tests.append(SelfTest.from_json(item))
        except InvalidField as fault:
            raise fault.under(f"self_tests.{i}") from None
    return tuple(tests)


def by_id(devices: Sequence[ScriptedDevice], device_id: str) -> ScriptedDevice | None:
    return next((d for d in devices if d.device_id == device_id), None)
