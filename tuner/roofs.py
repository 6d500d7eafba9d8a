"""Roofs measured on the device at hand (not taken from a data sheet)."""

from collections.abc import Mapping
from dataclasses import dataclass

from search_space.workload import Workload


@dataclass(frozen=True)
class Roofs:
    """Peak rates: FLOP/s by input dtype, bytes/s of memory and of the last-level cache (0: not known)."""

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    cache_bytes_per_s: float = 0.0
    cache_bytes: int = 0

    def time_s(self, workload: Workload) -> tuple[float, str]:
        """(roofline time in seconds, "compute" | "memory"), the roofline model (Williams et al., CACM 52(4), 2009).

        Operands that fit the last-level cache are charged at its rate where it is known (warm measurements).
        """
        peak, rate = self.rates(workload)
        compute, memory = workload.flops() / peak, workload.min_bytes() / rate
        return (compute, "compute") if compute >= memory else (memory, "memory")

    def rates(self, workload: Workload) -> tuple[float, float]:
        """(FLOP/s, bytes/s) of the roofs that bound `workload`; their quotient is the ridge in FLOP per byte."""
        dtype = workload.inputs()[0].dtype
        peak = self.flops_per_s.get(dtype) or max(self.flops_per_s.values())
        warm = self.cache_bytes_per_s and workload.footprint_bytes() <= self.cache_bytes
        return peak, self.cache_bytes_per_s if warm else self.memory_bytes_per_s

    def to_json(self) -> dict[str, object]:
        return {
            "flops_per_s": dict(self.flops_per_s),
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "cache_bytes_per_s": self.cache_bytes_per_s,
            "cache_bytes": self.cache_bytes,
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Roofs":
        return Roofs(**data)  # type: ignore[arg-type]
