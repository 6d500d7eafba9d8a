"""Evolution of one space's candidates towards a high predicted merit (Ansor, arXiv:2006.06762 section 5.1)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from search_space.candidate import Candidate
from tuner.presets import EvolutionConfig
from tuner.search.sampler import SpaceSampler
from tuner.search.state import SearchState

# merit [n] of n candidates, larger is better
Merit = Callable[[Sequence[Candidate]], NDArray[np.float64]]


def evolve(
    sampler: SpaceSampler, state: SearchState, merit: Merit, population: int, rng: np.random.Generator
) -> dict[Candidate, float]:
    """Candidates not proposed yet with their merit. A space with few of them left is scored whole instead.

    Equal merits keep the order in which they were found, which the rng alone decides.
    """
    config = state.preset.evolution
    remaining = sampler.remaining(state.proposed)
    if remaining is not None and len(remaining) <= population * (config.generations + 1):
        return _scored(remaining, merit)
    elites = state.measured_best(sampler, config.elites)
    first = sampler.fresh(max(population - len(elites), population // 2), state.proposed, rng, elites)
    pool = _scored(dict.fromkeys((*elites, *first)), merit)
    for _ in range(config.generations):
        parents = sorted(pool, key=lambda c: -pool[c])[:population]
        if not parents:
            break
        children = _children(sampler, parents, population, config, rng)
        pool.update(_scored([c for c in children if c not in pool], merit))
    return {c: value for c, value in pool.items() if c not in state.proposed}


def _scored(candidates: Sequence[Candidate] | dict[Candidate, None], merit: Merit) -> dict[Candidate, float]:
    listed = list(candidates)
    return dict(zip(listed, merit(listed).tolist(), strict=True)) if listed else {}


def _children(
    sampler: SpaceSampler,
    parents: Sequence[Candidate],
    n: int,
    config: EvolutionConfig,
    rng: np.random.Generator,
) -> list[Candidate]:
    """n distinct children at most; the parent at rank r is chosen with a probability that falls linearly in r."""
    weights = np.arange(len(parents), 0, -1, dtype=np.float64)
    chosen = rng.choice(len(parents), size=(n, 2), p=weights / weights.sum())
    children: dict[Candidate, None] = {}
    for i, j in chosen.tolist():
        if i == j or rng.random() < config.mutation_probability:
            child = sampler.mutate(parents[i], config, rng)
        else:
            child = sampler.cross(parents[i], parents[j], rng)
        if child is not None:
            children[child] = None
    return list(children)
