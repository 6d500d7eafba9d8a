"""Searches over recorded candidates: ours, and what it has to beat. Each returns the order in which it measures."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from search_space.candidate import Candidate
from search_space.knob import Knob, KnobValue
from search_space.sketch import Space
from tuner.presets import Preset
from tuner.round import TaskSearch
from tuner.task import Task, TuningRecord

Records = Mapping[Candidate, TuningRecord]
Method = Callable[[Task, Sequence[Space], Records, int, int], list[Candidate]]

# Regularised evolution (Real et al., arXiv:1802.01548), scaled to budgets of about a hundred trials.
_POPULATION = 16
_TOURNAMENT = 5
_NEAREST = 4


def with_model(preset: Preset, related: Sequence[TuningRecord] = ()) -> Method:
    """The service's own search, with the records of other tasks to learn from where `related` holds any."""

    def run(task: Task, spaces: Sequence[Space], records: Records, trials: int, seed: int) -> list[Candidate]:
        search = TaskSearch(task, spaces, preset, seed, related=related, only=list(records))
        order: list[Candidate] = []
        while len(order) < trials:
            search.refit()
            batch = search.next_batch(min(preset.batch_size, trials - len(order)))
            if not batch:
                break
            for candidate, _ in batch:
                record = records[candidate]
                search.observe(TuningRecord(task, candidate, len(order), 0, record.measurement, "replay"))
                order.append(candidate)
        return order

    return run


def at_random(task: Task, spaces: Sequence[Space], records: Records, trials: int, seed: int) -> list[Candidate]:
    """Uniform over the records, without replacement."""
    every = list(records)
    return [every[int(i)] for i in np.random.default_rng(seed).permutation(len(every))[:trials]]


def regularised_evolution(
    task: Task, spaces: Sequence[Space], records: Records, trials: int, seed: int
) -> list[Candidate]:
    """Aging evolution without a model: the best of a tournament has a child, the oldest dies. A child is one of the
    nearest unmeasured records, since a mutation anywhere else has no recorded time."""
    rng = np.random.default_rng(seed)
    knobs = {space.sketch.name: {k.name: k for k in space.knobs} for space in spaces}
    order = at_random(task, spaces, records, min(_POPULATION, trials), seed)
    alive = deque(order, maxlen=_POPULATION)
    left = dict.fromkeys(c for c in records if c not in set(order))
    while len(order) < trials and left:
        lots = rng.choice(len(alive), size=min(_TOURNAMENT, len(alive)), replace=False)
        parent = min((alive[int(i)] for i in lots), key=lambda c: _latency(records[c]))
        near = sorted(left, key=lambda c: _steps(parent, c, knobs))[:_NEAREST]
        child = near[int(rng.integers(len(near)))]
        del left[child]
        order.append(child)
        alive.append(child)
    return order


def _latency(record: TuningRecord) -> float:
    """A failure loses every tournament."""
    latency = record.measurement.latency_s
    return float("inf") if latency is None else latency


def _steps(a: Candidate, b: Candidate, knobs: Mapping[str, Mapping[str, Knob]]) -> float:
    """Knob steps between two candidates; another sketch is farther than any choice within one."""
    if a.sketch != b.sketch:
        return float("inf")
    left, right = a.knobs, b.knobs
    return sum(_knob_steps(knobs[a.sketch].get(name), left[name], right.get(name)) for name in left)


def _knob_steps(knob: Knob | None, x: KnobValue, y: KnobValue | None) -> int:
    if x == y:
        return 0
    if knob is None or y is None or not knob.ordered or x not in knob.values or y not in knob.values:
        return 1
    return abs(knob.values.index(x) - knob.values.index(y))
