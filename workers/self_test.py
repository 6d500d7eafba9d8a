"""Whether a device may be trusted with measurements: a product whose answer is known, its clocks, its memory.

Runs in the measuring child, which owns the device; what the child found crosses as JSON, and `verdict` judges it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from search_space import fields
from search_space.errors import InvalidField

Json = Mapping[str, object]

# Below this share of free memory the operands of an ordinary task may not fit, and others are at work on the device.
MIN_FREE_MEMORY = 0.05
# Side of the known product. Its entries are small integers: every format from 8-bit float on sums them exactly.
_SIDE = 64


@dataclass(frozen=True)
class SelfTest:
    """What one look at a device found. `throttled` names the reason that the driver gives; `free_memory` is a share of
    the device's memory, None where nobody tells; `error` is why the look itself failed."""

    answer_ok: bool = True
    throttled: str = ""
    free_memory: float | None = None
    error: str = ""

    @property
    def verdict(self) -> str:
        """Why the device is set aside; empty when it is fit."""
        if self.error:
            return f"self-test failed: {self.error}"
        if not self.answer_ok:
            return "wrong answer on a known product"
        if self.throttled:
            return f"clocks throttled: {self.throttled}"
        if self.free_memory is not None and self.free_memory < MIN_FREE_MEMORY:
            return f"memory nearly full: {self.free_memory:.1%} free, somebody else uses the device"
        return ""

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: object) -> "SelfTest":
        """InvalidField naming the field."""
        if not isinstance(data, Mapping):
            raise InvalidField("", "must be an object")
        fields.only(data, frozenset(f.name for f in dataclasses.fields(SelfTest)))
        texts = {}
        for name in ("throttled", "error"):
            text = data.get(name, "")
            if not isinstance(text, str):
                raise InvalidField(name, "must be a string")
            texts[name] = text
        ok = data.get("answer_ok", True)
        if not isinstance(ok, bool):
            raise InvalidField("answer_ok", "must be true or false")
        free = data.get("free_memory")
        if free is not None and (isinstance(free, bool) or not isinstance(free, int | float) or not 0 <= free <= 1):
            raise InvalidField("free_memory", f"must be a share from 0 to 1, got {free!r}")
        return SelfTest(ok, texts["throttled"], None if free is None else float(free), texts["error"])


def on_cpu(message: Json) -> SelfTest:
    """The host's own product and memory. Clocks are not judged: a virtual CPU does not tell them."""
    memory = psutil.virtual_memory()
    return SelfTest(answer_ok=_known_product("cpu", "float32"), free_memory=memory.available / memory.total)


def on_cuda(message: Json) -> SelfTest:
    """The first device that this process sees; `message["device_id"]` is its UUID for NVML."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(str(message["device_id"]).removeprefix("cuda:"))
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return SelfTest(
        answer_ok=_known_product("cuda", "bfloat16"),
        throttled=", ".join(name for name, bit in _slowdowns(pynvml).items() if reasons & bit),
        free_memory=memory.free / memory.total,
    )


def _slowdowns(nvml: object) -> dict[str, int]:
    """The reasons that are a fault of the machine; idle clocks and a power cap under load are ordinary."""
    names = {
        "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
        "hardware thermal slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
        "hardware power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
        "software thermal slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
    }
    return {text: int(getattr(nvml, name)) for text, name in names.items()}


def _known_product(device: str, dtype: str) -> bool:
    """C = A B with a_ij = (i + 2 j) mod 5 - 2 and b_ij = (3 i + j) mod 3 - 1: |c_ij| <= 128, exact in bfloat16."""
    import torch

    i, j = torch.meshgrid(torch.arange(_SIDE), torch.arange(_SIDE), indexing="ij")
    a, b = (i + 2 * j) % 5 - 2, (3 * i + j) % 3 - 1
    kind = getattr(torch, dtype)
    found = a.to(device, kind) @ b.to(device, kind)
    return bool(torch.equal(found.to("cpu", torch.int64), a @ b))


def as_scripted(message: Json) -> SelfTest:
    """What the script says that the look finds."""
    return SelfTest.from_json(message["scripted"])


Look = Callable[[Json], SelfTest]
