"""What a GPU does while it is measured: clocks, power, temperature and why it holds back, through NVML."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

_log = logging.getLogger(__name__)

# nvmlClocksEventReasons (nvml.h). The first group means that the card is not what it should be; the power cap is how a
# large matrix product runs on a healthy card, so it is told but spoils nothing.
SPOILING = {0x08: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
TOLD = {0x02: "application_clocks", 0x04: "sw_power_cap", 0x10: "sync_boost", 0x100: "display_clocks"}


@dataclass(frozen=True)
class Reading:
    """MHz, W, degrees Celsius; None where the card does not tell. `reasons` are NVML's clock event bits."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: int = 0

    @property
    def throttled(self) -> bool:
        return any(self.reasons & bit for bit in SPOILING)


class Sensors:
    """One GPU's sensors; every reading is empty where NVML is not to be had (`why_not` says why)."""

    def __init__(self, uuid: str) -> None:
        self.why_not: str | None = None
        self._handle: Any = None
        try:
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as fault:  # noqa: BLE001  the package, the library or the permission may be missing
            self.why_not = f"{type(fault).__name__}: {fault}"
            _log.warning("no clocks or power are recorded for %s: %s", uuid, self.why_not)

    def read(self) -> Reading:
        if self._handle is None:
            return Reading()
        n, h = self._nvml, self._handle
        power = self._ask(n.nvmlDeviceGetPowerUsage, h)
        return Reading(
            self._ask(n.nvmlDeviceGetClockInfo, h, n.NVML_CLOCK_SM),
            self._ask(n.nvmlDeviceGetClockInfo, h, n.NVML_CLOCK_MEM),
            None if power is None else power / 1000.0,
            self._ask(n.nvmlDeviceGetTemperature, h, n.NVML_TEMPERATURE_GPU),
            self._ask(n.nvmlDeviceGetCurrentClocksThrottleReasons, h) or 0,
        )

    def _ask(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None  # this card does not tell


@dataclass
class Log:
    """The readings round the samples of one candidate."""

    readings: list[Reading] = field(default_factory=list)
    repeated: int = 0  # samples taken again because the card was throttled
    spoilt: int = 0  # samples kept although it was

    def to_json(self) -> dict[str, object]:
        """The fields of an Observation; `details` tells the reasons by name."""
        reasons = 0
        for reading in self.readings:
            reasons |= reading.reasons
        names = [name for bit, name in (SPOILING | TOLD).items() if reasons & bit]
        details: dict[str, object] = {"throttle_reasons": names}
        if self.repeated:
            details["repeated_samples"] = self.repeated
        memory = _middle([r.memory_clock_mhz for r in self.readings])
        if memory is not None:
            details["memory_clock_mhz"] = round(memory)
        clock = _middle([r.sm_clock_mhz for r in self.readings])
        return {
            "sm_clock_mhz": None if clock is None else round(clock),
            "power_w": max((r.power_w for r in self.readings if r.power_w is not None), default=None),
            "temperature_c": max((r.temperature_c for r in self.readings if r.temperature_c is not None), default=None),
            "throttled": self.spoilt > 0,
            "details": details,
        }


def _middle(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
