"""A candidate: a sketch at one version with every knob chosen."""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from search_space.knob import Knobs, KnobValue
from search_space.workload import canonical_bytes


@dataclass(frozen=True)
class Candidate:
    """`choices` holds (knob name, value) sorted by name, so that equal candidates are equal and hashable."""

    sketch: str
    version: int
    choices: tuple[tuple[str, KnobValue], ...]

    @staticmethod
    def of(sketch: str, version: int, knobs: Mapping[str, KnobValue]) -> "Candidate":
        return Candidate(sketch, version, tuple(sorted(knobs.items())))

    @property
    def knobs(self) -> Knobs:
        return dict(self.choices)

    @property
    def key(self) -> str:
        """16 hex digits of SHA-256 over sketch, version and knobs."""
        return hashlib.sha256(canonical_bytes(self.to_json())).hexdigest()[:16]

    def to_json(self) -> dict[str, object]:
        return {"sketch": self.sketch, "version": self.version, "knobs": dict(self.choices)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Candidate":
        knobs = data["knobs"]
        assert isinstance(knobs, Mapping)
        return Candidate.of(str(data["sketch"]), int(str(data["version"])), knobs)

    def replace(self, **knobs: KnobValue) -> "Candidate":
        return dataclasses.replace(self, choices=tuple(sorted({**self.knobs, **knobs}.items())))
