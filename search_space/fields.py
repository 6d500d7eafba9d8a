"""Strict readers of JSON fields: each returns a typed value or raises InvalidField naming the field."""

import math
from collections.abc import Mapping

from search_space.errors import InvalidField

INT64_MAX = 2**63 - 1
# An extent above this cannot be indexed by any kernel here; products are checked on their own.
EXTENT_MAX = 2**31 - 1

Json = Mapping[str, object]


def only(data: Json, known: frozenset[str]) -> None:
    """Refuse a field that nobody would read: a misspelt flag must not silently mean its default."""
    for name in data:
        if name not in known:
            raise InvalidField(str(name), "unknown field", tuple(sorted(known)))


def integer(data: Json, name: str, default: int | None = None, low: int = 1, high: int = EXTENT_MAX) -> int:
    """An integer in [low, high]; booleans, floats and strings are refused."""
    value = data.get(name, default)
    if value is None:
        raise InvalidField(name, "is required")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(name, f"must be an integer, not {type(value).__name__}")
    if value < low:
        raise InvalidField(name, f"must be at least {low}, got {value}")
    if value > high:
        raise InvalidField(name, f"must be at most {high}, got {value}")
    return value


def boolean(data: Json, name: str, default: bool = False) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise InvalidField(name, f"must be true or false, not {value!r}")
    return value


def number(data: Json, name: str, default: float | None = None, low: float = -math.inf) -> float | None:
    """A finite number not below `low`, or `default` where the field is absent or null."""
    value = data.get(name, default)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidField(name, f"must be a number, not {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:  # an integer beyond float64
        found = math.inf
    if not math.isfinite(found):
        raise InvalidField(name, "must be finite")
    if found < low:
        raise InvalidField(name, f"must be at least {low}, got {found}")
    return found


def choice(data: Json, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
    value = data.get(name, default)
    if value is None:
        raise InvalidField(name, "is required", allowed)
    if not isinstance(value, str) or value not in allowed:
        raise InvalidField(name, f"must be one of {', '.join(allowed)}, got {value!r}", allowed)
    return value
