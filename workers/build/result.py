"""What building one candidate gave."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.outcome import Outcome


@dataclass(frozen=True)
class BuildResult:
    """`artifact` (bytes of `tilewright.runtime.Artifact`) and its hash `digest` exist exactly when `outcome` is OK;
    `error` otherwise. `build_secs` is the wall time of lowering, compiling and linking; 0.0 from the cache.
    `ended_at`, seconds since the epoch, is when its builder had it ready."""

    outcome: Outcome
    artifact: bytes | None = None
    digest: str | None = None
    error: str | None = None
    build_secs: float = 0.0
    cached: bool = False
    ended_at: float | None = None

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != (self.artifact is not None):
            raise ValueError(f"{self.outcome} with {'an' if self.artifact is not None else 'no'} artifact")

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    def to_json(self) -> dict[str, object]:
        """Without the artifact, which crosses a process as bytes beside the JSON."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "artifact"}
        out["outcome"] = self.outcome.value
        return out

    @staticmethod
    def from_json(data: Mapping[str, object], artifact: bytes) -> "BuildResult":
        values: dict[str, object] = {**data, "outcome": Outcome(str(data["outcome"]))}
        if values["outcome"] is Outcome.OK:
            values["artifact"] = artifact
        return BuildResult(**values)  # type: ignore[arg-type]


class LowerError(Exception):
    """The sketch could not make a program of the candidate."""


class BuildError(Exception):
    """The compiler or linker refused the program, or the program was rejected before running."""


class BuildToolMissing(BuildError):
    """A compiler or library that building needs is not installed; the message names what to install."""
