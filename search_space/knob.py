"""A knob: one open choice of a sketch, over a finite domain in its natural order."""

from dataclasses import dataclass

KnobValue = int | bool | str


@dataclass(frozen=True)
class Knob:
    """`values` are distinct and ordered (small to large where that means anything): neighbours are one step apart.

    `doc` says what the choice does, in one line, with its unit.
    """

    name: str
    values: tuple[KnobValue, ...]
    doc: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"knob {self.name} has no values")
        if len(set(map(repr, self.values))) != len(self.values):
            raise ValueError(f"knob {self.name} repeats a value")

    @property
    def ordered(self) -> bool:
        """Whether one step up or down is a small change (numbers), or every value is as far as every other."""
        return all(isinstance(v, int) and not isinstance(v, bool) for v in self.values)

    def neighbours(self, value: KnobValue) -> tuple[KnobValue, ...]:
        """The values one step away (ordered), or all the others."""
        at = self.values.index(value)
        if not self.ordered:
            return tuple(v for v in self.values if v != value)
        return tuple(self.values[i] for i in (at - 1, at + 1) if 0 <= i < len(self.values))


Knobs = dict[str, KnobValue]
