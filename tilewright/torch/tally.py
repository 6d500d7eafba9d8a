"""How calls were served, counted by shape: what tuning would be worth."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# A call's shape: the workload's canonical JSON as sorted (name, value) pairs.
Key = tuple[tuple[str, object], ...]

TUNED, VENDOR, UNTUNED = "tuned", "vendor", "untuned"


@dataclass(frozen=True)
class Counts:
    """Calls by how they were served: by a tuned kernel, by torch because it won the tuning (vendor), or by torch for
    want of a schedule (missed). `missed_shapes`: the latter by workload; `misses` says why."""

    tuned: int
    vendor: int
    missed: int
    missed_shapes: Mapping[Key, int]


@dataclass(frozen=True)
class Miss:
    """Calls that ran torch's kernel. `reason` is "untuned", or why no schedule could have served them (then tuning does
    not help); `workload` their shape in the service's JSON, as far as it has words for it; `device` cpu or cuda."""

    workload: Mapping[str, object]
    device: str
    reason: str
    calls: int

    @property
    def tunable(self) -> bool:
        return self.reason == UNTUNED


class Tally:
    """Calls of one shape on one kind of device with one outcome."""

    __slots__ = ("_lock", "calls", "device", "key", "outcome")

    def __init__(self, device: str, key: Key, outcome: str, lock: threading.Lock) -> None:
        self.device = device
        self.key = key
        self.outcome = outcome
        self.calls = 0
        self._lock = lock

    def count(self) -> None:
        with self._lock:
            self.calls += 1


class Tallies:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[tuple[str, Key, str], Tally] = {}

    def of(self, device: str, key: Key, outcome: str) -> Tally:
        """`outcome`: TUNED, VENDOR, UNTUNED, or why the call was refused."""
        with self._lock:
            return self._all.setdefault((device, key, outcome), Tally(device, key, outcome, self._lock))

    def reset(self) -> None:
        """Counts start at 0; tallies that callers hold stay valid."""
        with self._lock:
            for tally in self._all.values():
                tally.calls = 0

    def counts(self) -> Counts:
        sums = {TUNED: 0, VENDOR: 0}
        missed: dict[Key, int] = {}
        for tally, calls in self._counted():
            if tally.outcome in sums:
                sums[tally.outcome] += calls
            else:
                missed[tally.key] = missed.get(tally.key, 0) + calls
        return Counts(sums[TUNED], sums[VENDOR], sum(missed.values()), missed)

    def misses(self) -> tuple[Miss, ...]:
        """Most called first."""
        found = [
            Miss(dict(t.key), t.device, t.outcome, calls)
            for t, calls in self._counted()
            if t.outcome not in (TUNED, VENDOR)
        ]
        return tuple(sorted(found, key=lambda miss: (-miss.calls, miss.reason, str(miss.workload))))

    def _counted(self) -> Iterator[tuple[Tally, int]]:
        with self._lock:
            found = [(tally, tally.calls) for tally in self._all.values() if tally.calls]
        yield from found
