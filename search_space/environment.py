"""What a measurement holds for (identity), and what was seen while it was taken (observation)."""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from search_space.workload import canonical_bytes


@dataclass(frozen=True)
class EnvironmentIdentity:
    """The half of an environment that a lookup must match exactly; every field is a reason for another number.

    `policy` is the measuring policy's version string, cache state in it (``v1/warm``).
    """

    kind: str
    model: str
    arch: str
    cores: int
    driver: str  # GPU driver version, or the kernel's C library on a CPU
    cuda: str  # empty on a CPU
    tvm: str
    compiler: str  # LLVM or nvcc/NVRTC version
    policy: str

    def to_json(self) -> dict[str, object]:
        return dict(vars(self))  # all plain values: no need of asdict's deep copies, and this is written often

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "EnvironmentIdentity":
        return EnvironmentIdentity(**data)  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        return hashlib.sha256(canonical_bytes(self.to_json())).hexdigest()[:16]

    def differences(self, other: "EnvironmentIdentity") -> tuple[str, ...]:
        """Names of the fields in which the two differ."""
        names = (f.name for f in dataclasses.fields(self))
        return tuple(n for n in names if getattr(self, n) != getattr(other, n))


@dataclass(frozen=True)
class Observation:
    """Kept beside each measurement, never matched. Clocks in MHz, power in W, temperature in degrees Celsius."""

    device_id: str = ""  # GPU UUID, or ``cpu:<host>``
    host: str = ""
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "details": dict(self.details)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Observation":
        return Observation(**data)  # type: ignore[arg-type]
