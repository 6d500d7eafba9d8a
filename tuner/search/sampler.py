"""Legal points of one sketch's space: listed where it is small, drawn where it is large. Never an endless loop."""

from collections.abc import Collection, Container, Sequence

import numpy as np

from search_space.candidate import Candidate
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Space, legal_points
from tuner.presets import EvolutionConfig, SamplingConfig


class SpaceSampler:
    """Draws and varies candidates of one space. Immutable after construction, so it can be shared between states.

    `points` is the exact list of legal candidates, or None for a space too large to list. `only` narrows the space to
    candidates that can be measured at all: those with a stored record (a replay), or those that were built ahead.
    """

    def __init__(self, space: Space, config: SamplingConfig, only: Collection[Candidate] | None = None) -> None:
        self.space = space
        self.config = config
        self.points: tuple[Candidate, ...] | None = None
        self._only = None if only is None else frozenset(only)
        if only is not None:
            same = (space.sketch.name, space.sketch.version)
            self.points = tuple(c for c in dict.fromkeys(only) if (c.sketch, c.version) == same)
        elif space.cardinality <= config.enumerate_limit:
            self.points = tuple(space.candidate(knobs) for knobs in legal_points(space))
        self._open = tuple(knob for knob in space.knobs if len(knob.values) > 1)
        self._names = frozenset((*space.fixed, *(knob.name for knob in space.knobs)))

    @property
    def name(self) -> str:
        return self.space.sketch.name

    def holds(self, candidate: Candidate) -> bool:
        """Whether `candidate` is of this sketch, at this version, with these knobs, and breaks no constraint."""
        sketch = self.space.sketch
        if (candidate.sketch, candidate.version) != (sketch.name, sketch.version):
            return False
        knobs = candidate.knobs
        return frozenset(knobs) == self._names and self._is_legal(knobs)

    def remaining(self, taken: Container[Candidate]) -> list[Candidate] | None:
        """The legal candidates not in `taken`, in the order of the domains; None for a space that is not listed."""
        return None if self.points is None else [c for c in self.points if c not in taken]

    def fresh(
        self, n: int, taken: Container[Candidate], rng: np.random.Generator, anchors: Sequence[Candidate] = ()
    ) -> list[Candidate]:
        """At most n distinct legal candidates outside `taken`; fewer when they are exhausted, or could not be found
        within the configured tries. `anchors` are known legal candidates to walk from where draws keep failing."""
        remaining = self.remaining(taken)
        if remaining is not None:
            return [remaining[int(i)] for i in rng.permutation(len(remaining))[:n]]
        found: dict[Candidate, None] = {}
        barren = 0
        while len(found) < n and barren < self.config.barren_points:
            candidate = self._draw(rng) or self._walk([*anchors, *found], rng)
            if candidate is None or candidate in taken or candidate in found:
                barren += 1
            else:
                found[candidate] = None
                barren = 0
        return list(found)

    def mutate(self, parent: Candidate, config: EvolutionConfig, rng: np.random.Generator) -> Candidate | None:
        """A legal neighbour: one knob moved one step (or anywhere, seldom), sometimes more knobs with it."""
        if not self._open:
            return None
        for _ in range(self.config.tries):
            knobs = parent.knobs
            order = rng.permutation(len(self._open))
            for place, i in enumerate(order):
                if place and rng.random() >= config.extra_mutation_probability:
                    break
                knob = self._open[int(i)]
                knobs[knob.name] = _moved(knob, knobs[knob.name], config.far_jump_probability, rng)
            if self._is_legal(knobs):
                return self.space.candidate(knobs)
        return None

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Every legal candidate that differs in one knob by one step, in the order of the knobs."""
        knobs = candidate.knobs
        steps = [{**knobs, k.name: v} for k in self._open for v in k.neighbours(knobs[k.name])]
        return [self.space.candidate(step) for step in steps if self._is_legal(step)]

    def cross(self, a: Candidate, b: Candidate, rng: np.random.Generator) -> Candidate | None:
        """Each open knob from one parent or the other, as long as the mix is legal."""
        left, right = a.knobs, b.knobs
        for _ in range(self.config.tries):
            from_left = rng.random(len(self._open)) < 0.5
            knobs = dict(left)
            for knob, take_left in zip(self._open, from_left, strict=True):
                knobs[knob.name] = (left if take_left else right)[knob.name]
            if self._is_legal(knobs):
                return self.space.candidate(knobs)
        return None

    def _is_legal(self, knobs: Knobs) -> bool:
        if self._only is not None:
            return self.space.candidate(knobs) in self._only
        return self.space.violated(knobs) is None

    def _draw(self, rng: np.random.Generator) -> Candidate | None:
        """A uniform draw over the legal points by rejection; after the last try, a repaired illegal one."""
        knobs: Knobs = {}
        for _ in range(self.config.tries):
            at = rng.random(len(self.space.knobs)).tolist()  # one call to the rng a point: it costs more than the rest
            values = {k.name: k.values[int(x * len(k.values))] for k, x in zip(self.space.knobs, at, strict=True)}
            knobs = {**self.space.fixed, **values}
            if self._is_legal(knobs):
                return self.space.candidate(knobs)
        return self._repair(knobs, rng)

    def _repair(self, knobs: Knobs, rng: np.random.Generator) -> Candidate | None:
        """Sets one knob at a time to a value that makes the whole legal, or to any value and goes on."""
        for _ in range(self.config.repair_steps if self._open else 0):
            knob = self._open[int(rng.integers(len(self._open)))]
            for i in rng.permutation(len(knob.values)):
                changed = {**knobs, knob.name: knob.values[int(i)]}
                if self._is_legal(changed):
                    return self.space.candidate(changed)
            knobs[knob.name] = _any(knob, rng)
        return None

    def _walk(self, anchors: Sequence[Candidate], rng: np.random.Generator) -> Candidate | None:
        """A few random legal steps away from a known legal candidate."""
        if not anchors:
            return None
        at = anchors[int(rng.integers(len(anchors)))]
        wide = EvolutionConfig(far_jump_probability=0.5)
        for _ in range(1 + int(rng.integers(3))):
            at = self.mutate(at, wide, rng) or at
        return at


def _any(knob: Knob, rng: np.random.Generator) -> KnobValue:
    return knob.values[int(rng.integers(len(knob.values)))]


def _moved(knob: Knob, value: KnobValue, far: float, rng: np.random.Generator) -> KnobValue:
    """Another value of the knob: a neighbour, or with probability `far` any other. A value outside the domain (an
    older record's) moves anywhere into it."""
    near = knob.neighbours(value) if value in knob.values else ()
    if not near or rng.random() < far:
        near = tuple(v for v in knob.values if v != value)
    return near[int(rng.integers(len(near)))]
