"""The candidates to try before any model has an opinion: experts' seeds, then winners of related tasks."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeGuard

from search_space.candidate import Candidate
from tuner.dataset import group_of
from tuner.search.sampler import SpaceSampler
from tuner.search.state import rank_key
from tuner.task import Task, TuningRecord


def openers(
    samplers: Sequence[SpaceSampler], task: Task, related: Sequence[TuningRecord], transfer: int
) -> tuple[Candidate, ...]:
    """Distinct legal candidates: the sketches' seeds in turns, then `transfer` winners of the nearest tasks."""
    found = dict.fromkeys(_seeds(samplers))
    left = transfer
    for candidate in _winners_nearest_first(task, related):
        if not left:
            break
        if candidate not in found and any(s.holds(candidate) for s in samplers):
            found[candidate] = None
            left -= 1
    return tuple(found)


def _seeds(samplers: Sequence[SpaceSampler]) -> list[Candidate]:
    lots = []
    for sampler in samplers:
        space = sampler.space
        seeds = space.sketch.seeds(space.workload, space.target)
        lots.append([c for c in map(space.candidate, seeds) if sampler.holds(c)])
    return [c for turn in zip_longest(*lots) for c in turn if c is not None]


def _winners_nearest_first(task: Task, related: Sequence[TuningRecord]) -> list[Candidate]:
    """The best candidate of each group of comparable records, the nearest task first."""
    best: dict[str, TuningRecord] = {}
    for record in related:
        if record.measurement.latency_s is not None:
            group = group_of(record)
            if group not in best or rank_key(record) < rank_key(best[group]):
                best[group] = record
    ranked = sorted(best.items(), key=lambda item: (distance(task, item[1].task), item[0]))
    return [record.candidate for _, record in ranked]


def distance(a: Task, b: Task) -> float:
    """Euclidean over the log2 of the workloads' sizes, plus 4 (a factor of 16) for each flag, dtype or part of the
    target that differs: a winner of another dtype is a worse guess than one of a shape eight times as large."""
    left, right = a.workload.to_json(), b.workload.to_json()
    squares, differences = 0.0, 0
    for name in sorted({*left, *right}):
        x, y = left.get(name), right.get(name)
        if _is_size(x) and _is_size(y):
            squares += math.pow(math.log2(x) - math.log2(y), 2)
        elif x != y:
            differences += 1
    s, t = a.target, b.target
    differences += sum((s.kind != t.kind, s.arch != t.arch, s.model != t.model, s.cores != t.cores))
    return math.sqrt(squares) + 4.0 * differences


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
