"""What a search ended with, after the finalists were measured again."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity


@dataclass(frozen=True)
class Contestant:
    """One entry of the final: `name` is a candidate's key or ``vendor:<library>``.

    `run_secs` holds one time per round, in seconds a call; rounds are the same for all contestants, so that ratios
    can be paired.
    """

    name: str
    run_secs: tuple[float, ...]
    candidate: Candidate | None = None
    artifact: str | None = None  # content hash
    max_rel_err: float | None = None


@dataclass(frozen=True)
class Final:
    """All contestants of one task measured interleaved, in random order, over many rounds, in one process."""

    contestants: tuple[Contestant, ...]
    identity: EnvironmentIdentity
    interval: tuple[float, float]
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> error


@dataclass(frozen=True)
class BestConfig:
    """The promoted winner. `speedup` = vendor / ours, median of paired rounds; `speedup_ci95` its 95 % interval.

    `served` is what a lookup tells the caller to run: "vendor" when ours would be slower, or the final was too noisy to
    tell. The baseline's fields and the speedups are None where the vendor's library has no such kernel; the roofline's
    where the device has no roofs.
    """

    candidate: Candidate
    artifact: str
    latency_s: float
    latency_ci95_s: tuple[float, float]
    baseline_name: str | None
    baseline_latency_s: float | None
    speedup: float | None
    speedup_ci95: tuple[float, float] | None
    served: str  # "tilewright" or "vendor"
    identity: EnvironmentIdentity
    roofline_bound: str | None  # "compute" or "memory"
    roofline_fraction: float | None
    ridge_flop_per_byte: float | None
    max_rel_err: float | None = None
    trials: int = 0

    def to_json(self) -> dict[str, object]:
        out = dataclasses.asdict(self)
        out["candidate"] = self.candidate.to_json()
        out["identity"] = self.identity.to_json()
        return out

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "BestConfig":
        """Reads what to_json wrote."""
        d: dict[str, object] = dict(data)
        candidate, identity = d["candidate"], d["identity"]
        assert isinstance(candidate, Mapping)
        assert isinstance(identity, Mapping)
        d["candidate"] = Candidate.from_json(candidate)
        d["identity"] = EnvironmentIdentity.from_json(identity)
        for name in ("latency_ci95_s", "speedup_ci95"):
            pair = d[name]
            d[name] = tuple(pair) if isinstance(pair, (list, tuple)) else None
        return BestConfig(**d)  # type: ignore[arg-type]
