"""What the search of one task knows: its spaces, what was proposed, what came back."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_space.candidate import Candidate
from tuner.dataset import Featuriser
from tuner.outcome import Outcome
from tuner.presets import Preset
from tuner.search.sampler import SpaceSampler
from tuner.task import Task, TuningRecord


@dataclass(frozen=True)
class SearchState:
    """Immutable; every step returns a new one. `openers` are the choices to try first, best first: experts' seeds and
    winners of related tasks. `proposed` holds all that was ever proposed or recorded, so that nothing is repeated."""

    task: Task
    preset: Preset
    samplers: tuple[SpaceSampler, ...]
    featuriser: Featuriser
    openers: tuple[Candidate, ...] = ()
    proposed: frozenset[Candidate] = frozenset()
    records: tuple[TuningRecord, ...] = ()

    def with_proposed(self, candidates: Iterable[Candidate]) -> "SearchState":
        return dataclasses.replace(self, proposed=self.proposed.union(candidates))

    def with_record(self, record: TuningRecord) -> "SearchState":
        state = self.with_proposed((record.candidate,))
        return dataclasses.replace(state, records=(*self.records, record))

    @property
    def exhausted(self) -> bool:
        """Whether every legal candidate of every space was proposed; False when a space is too large to tell."""
        return all(s.points is not None and not s.remaining(self.proposed) for s in self.samplers)

    @property
    def valid(self) -> tuple[TuningRecord, ...]:
        return tuple(r for r in self.records if r.measurement.outcome is Outcome.OK)

    @property
    def best(self) -> TuningRecord | None:
        """The record of the lowest latency; the first of equals by trial, then candidate key."""
        return min(self.valid, key=rank_key, default=None)

    @property
    def best_latency_s(self) -> float | None:
        best = self.best
        return None if best is None else best.measurement.latency_s

    def measured_best(self, sampler: SpaceSampler, n: int) -> list[Candidate]:
        """The n fastest measured candidates of one space, fastest first."""
        ranked = sorted(self.valid, key=rank_key)
        distinct = dict.fromkeys(r.candidate for r in ranked)
        return [c for c in distinct if sampler.holds(c)][:n]


def rank_key(record: TuningRecord) -> tuple[float, int, str]:
    latency = record.measurement.latency_s
    assert latency is not None, "only valid records are ranked"
    return latency, record.trial, record.candidate.key


def distinct_trials(records: Sequence[TuningRecord]) -> int:
    """Trials that count against a budget: a retry of the same candidate is not another one."""
    return len({r.candidate for r in records})
