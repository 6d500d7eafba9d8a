"""Which version of a sketch this program lowers: a schedule of another one is stale."""

from collections.abc import Callable

from search_space.registry import all_sketches

SketchVersion = Callable[[str], int | None]


def registered(name: str) -> int | None:
    """The version in `search_space.sketches`; None for a sketch that is not there (its artifact still runs)."""
    sketch = all_sketches().get(name)
    return None if sketch is None else sketch.version
