"""A number worth storing, or the reason there is none."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from search_space.environment import EnvironmentIdentity, Observation
from tuner.outcome import Outcome


@dataclass(frozen=True)
class Measurement:
    """One attempt at one candidate.

    `run_secs` holds one time per repeat, in seconds per call: finite and positive when the outcome is OK, empty
    otherwise. `interval` is when the device was held, in seconds since the epoch [start, end]. `raced_out`: the
    candidate lost a short probe by more than 2x, so its times are few. Raises ValueError when outcome and times
    contradict each other.
    """

    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    error: str | None = None
    interval: tuple[float, float] | None = None
    identity: EnvironmentIdentity | None = None
    observation: Observation = field(default_factory=Observation)
    build_secs: float = 0.0
    max_rel_err: float | None = None
    ci95_secs: tuple[float, float] | None = None  # of the median
    raced_out: bool = False

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != bool(self.run_secs):
            raise ValueError(f"{self.outcome} with {len(self.run_secs)} times")
        if any(not math.isfinite(t) or t <= 0.0 for t in self.run_secs):
            raise ValueError("times must be finite and positive")

    @property
    def latency_s(self) -> float | None:
        """Median of the repeats in seconds, None for a failure."""
        return statistics.median(self.run_secs) if self.run_secs else None

    def to_json(self) -> dict[str, object]:
        return {
            "outcome": self.outcome.value,
            "run_secs": list(self.run_secs),
            "error": self.error,
            "interval": list(self.interval) if self.interval else None,
            "identity": self.identity.to_json() if self.identity else None,
            "observation": self.observation.to_json(),
            "build_secs": self.build_secs,
            "max_rel_err": self.max_rel_err,
            "ci95_secs": list(self.ci95_secs) if self.ci95_secs else None,
            "raced_out": self.raced_out,
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Measurement":
        d: dict[str, object] = dict(data)
        identity, observation = d["identity"], d["observation"]
        interval, ci95 = d["interval"], d["ci95_secs"]
        assert isinstance(observation, Mapping)
        d["outcome"] = Outcome(str(d["outcome"]))
        d["run_secs"] = tuple(d["run_secs"])  # type: ignore[arg-type]
        d["identity"] = EnvironmentIdentity.from_json(identity) if isinstance(identity, Mapping) else None
        d["observation"] = Observation.from_json(observation)
        d["interval"] = tuple(interval) if isinstance(interval, list) else None
        d["ci95_secs"] = tuple(ci95) if isinstance(ci95, list) else None
        return Measurement(**d)  # type: ignore[arg-type]
