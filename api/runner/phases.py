"""How a job's wall time is spent, by phase; the figure behind `search overhead`."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Phases:
    """Seconds of wall time by phase since the last `take`. Not thread-safe; phases do not nest."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def spend(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] += time.monotonic() - start

    def take(self) -> Mapping[str, float]:
        out = dict(self._seconds)
        self._seconds.clear()
        return out
