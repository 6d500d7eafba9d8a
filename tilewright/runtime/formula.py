"""Launch formulas: how a grid, a byte count or a kernel argument follows from the extents, as plain JSON.

A formula is an integer, a name (``"m"``), or a list ``[operation, operand, ...]`` of formulas.
"""

from collections.abc import Callable, Mapping
from typing import Any

Formula = int | str | list[Any]

_OPERATIONS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    # ["if", x, a, b]: a where x > 0, else b.
    "if": lambda x, a, b: a if x > 0 else b,
}


def evaluate(formula: object, names: Mapping[str, int]) -> int:
    """Raises ValueError naming what is unknown."""
    if isinstance(formula, bool):
        return int(formula)
    if isinstance(formula, int):
        return formula
    if isinstance(formula, str):
        if formula not in names:
            raise ValueError(f"formula names {formula!r}, known are {', '.join(sorted(names))}")
        return names[formula]
    if isinstance(formula, list) and formula and formula[0] in _OPERATIONS:
        return int(_OPERATIONS[formula[0]](*(evaluate(part, names) for part in formula[1:])))
    raise ValueError(f"not a formula: {formula!r}")
