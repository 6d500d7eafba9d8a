"""The port a program structure plugs into. A new structure is a new folder under `sketches/`, nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from search_space.candidate import Candidate
from search_space.knob import Knob, Knobs, KnobValue
from search_space.target import Target
from search_space.workload import Workload


@dataclass(frozen=True)
class Constraint:
    """A rule between knobs, checked before anything is lowered. `reason` tells a user why a choice is refused."""

    name: str
    reason: str


@dataclass(frozen=True)
class Resources:
    """What a choice takes of the device; bytes, counts. Registers are vector registers (CPU) or per thread (GPU)."""

    registers: int = 0
    shared_bytes: int = 0
    threads: int = 1  # parallel grains on a CPU, threads of a block on a GPU
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Traffic:
    """Predicted bytes that cross each memory level during one call."""

    memory_bytes: float
    l3_bytes: float = 0.0
    l2_bytes: float = 0.0
    l1_bytes: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """Why a sketch (or every sketch) cannot do a workload: the workload's field, and what it could be."""

    field: str
    reason: str
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Space:
    """The knobs of one sketch for one task. `fixed` are values that follow from the workload."""

    sketch: "Sketch"
    workload: Workload
    target: Target
    knobs: tuple[Knob, ...]
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)

    @property
    def cardinality(self) -> int:
        """Points of the full product, constraints not applied."""
        total = 1
        for knob in self.knobs:
            total *= len(knob.values)
        return total

    def violated(self, knobs: Knobs) -> Constraint | None:
        return self.sketch.violated(self.workload, self.target, knobs)

    def candidate(self, knobs: Knobs) -> Candidate:
        return Candidate.of(self.sketch.name, self.sketch.version, {**self.fixed, **knobs})


class Sketch(ABC):
    """One program structure with open knobs (Ansor's sketch, arXiv:2006.06762 section 4.1).

    Pure: no clock, file, environment variable or tvm. `version` grows whenever the same knobs lower to another
    program: stored records of another version are then stale. The module `search_space.sketches.<name>.lower` holds
    ``lower(workload, target, knobs) -> tvm.IRModule`` with one PrimFunc named ``main`` that takes the workload's
    inputs, then its outputs, as flat or shaped buffers in the layout of the workload.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    op: ClassVar[str]
    target_kind: ClassVar[str]
    # Extents that one built kernel takes at run time (the launch grid is then a formula); the rest is compiled in.
    runtime_extents: ClassVar[tuple[str, ...]] = ()
    # Ties inside the noise go to the simplest: smaller is simpler.
    complexity: ClassVar[int] = 1

    @abstractmethod
    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        """None where this sketch can do the workload on the target, else the first field it cannot."""

    @abstractmethod
    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        """The open knobs with the domains that make sense for this task; never empty domains."""

    @abstractmethod
    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        """The first constraint that the choice breaks, or None. Cheap: called thousands of times a round."""

    @abstractmethod
    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources: ...

    @abstractmethod
    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic: ...

    @abstractmethod
    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        """Named features of this structure (tile sizes, tail waste, unroll, parallel grains, ...); finite numbers.

        Names are shared between sketches where they mean the same; cost_model adds workload, target and roofline.
        """

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        """Choices that an expert would try first (measured early, not trusted): may be empty."""
        return ()


def legal_points(space: Space) -> Iterator[Knobs]:
    """Every choice that breaks no constraint, in lexicographic order of the domains; for small spaces and tests."""

    def extend(prefix: Knobs, rest: tuple[Knob, ...]) -> Iterator[Knobs]:
        if not rest:
            if space.violated(prefix) is None:
                yield dict(prefix)
            return
        for value in rest[0].values:
            yield from extend({**prefix, rest[0].name: value}, rest[1:])

    yield from extend(dict(space.fixed), space.knobs)
