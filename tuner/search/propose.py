"""What to measure next: openers first, then the model's favourites, a few of them at random; never a repeat."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost_model.model import CostModel, Predictions
from search_space.candidate import Candidate
from tuner.search.evolution import Merit, evolve
from tuner.search.state import SearchState, rank_key

# Fewer than this many of a population say little about a space.
_SMALLEST_POPULATION = 32

Proposal = tuple[Candidate, float | None]


def propose(state: SearchState, n: int, model: CostModel, rng: np.random.Generator) -> list[Proposal]:
    """At most n candidates with their predicted score in [0, 1] (None while the model is not trained), none of them
    in `state.proposed`. Fewer come back only when the spaces hold no more, or no more could be found within the
    preset's tries; so an empty list means exhausted. Deterministic for equal arguments."""
    chosen = _openers(state, n)
    if model.trained:
        greedy = n - len(chosen)
        greedy -= _random_share(greedy, state, rng)
        chosen += _favourites(state.with_proposed(chosen), greedy, model, rng)
    chosen += at_random(state.with_proposed(chosen), n - len(chosen), rng)
    return list(zip(chosen, _scores(state, chosen, model), strict=True))


def at_random(state: SearchState, n: int, rng: np.random.Generator) -> list[Candidate]:
    """At most n fresh candidates, the sketches taking turns in a random order."""
    known = dict.fromkeys((*(r.candidate for r in state.valid), *state.openers))
    lots = []
    for i in rng.permutation(len(state.samplers)):
        sampler = state.samplers[int(i)]
        anchors = [] if sampler.points is not None else [c for c in known if sampler.holds(c)]
        lots.append(sampler.fresh(n, state.proposed, rng, anchors))
    turns = [lot[turn] for turn in range(n) for lot in lots if turn < len(lot)]
    return turns[:n]


def _openers(state: SearchState, n: int) -> list[Candidate]:
    return [c for c in state.openers if c not in state.proposed][:n] if state.preset.evolution.seeds_first else []


def _random_share(n: int, state: SearchState, rng: np.random.Generator) -> int:
    """epsilon * n on average, and at least one in a batch that can spare it."""
    config = state.preset.evolution
    exact = config.epsilon * n
    share = int(exact) + int(rng.random() < exact - int(exact))
    return max(share, 1) if n >= config.random_floor else min(share, n)


def _favourites(state: SearchState, n: int, model: CostModel, rng: np.random.Generator) -> list[Candidate]:
    """The n of the highest predicted merit over all sketches, none of which may crowd out a promising other."""

    def merit(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        return _predict(state, candidates, model).merit

    config = state.preset.evolution
    climbing = _climbing(state, int(config.climb_share * n + rng.random()), merit)
    state = state.with_proposed(climbing)
    population = max(config.population // len(state.samplers), _SMALLEST_POPULATION)
    pool: dict[Candidate, float] = {}
    for sampler in state.samplers:
        pool.update(evolve(sampler, state, merit, population, rng))
    ranked = sorted(pool, key=lambda c: -pool[c])
    rest = n - len(climbing)
    return climbing + _diverse(ranked, pool, rest, config.sketch_share, config.diversity_floor)


def _climbing(state: SearchState, n: int, merit: Merit) -> list[Candidate]:
    """The n of the highest merit among the fresh neighbours of the best measured candidates."""
    found: dict[Candidate, None] = {}
    for record in sorted(state.valid, key=rank_key)[: state.preset.evolution.climb_from]:
        for sampler in state.samplers:
            if sampler.holds(record.candidate):
                found.update(dict.fromkeys(sampler.neighbours(record.candidate)))
    fresh = [c for c in found if c not in state.proposed]
    ranked = dict(zip(fresh, merit(fresh).tolist(), strict=True)) if fresh else {}
    return sorted(ranked, key=lambda c: -ranked[c])[:n]


def _diverse(
    ranked: Sequence[Candidate], merit: dict[Candidate, float], n: int, share: float, floor: float
) -> list[Candidate]:
    """The first n of `ranked`, one sketch taking at most `share` of them while another has a candidate whose merit is
    at least `floor` times the best."""
    cap = max(1, int(share * n))
    taken: dict[str, int] = {}
    chosen: list[Candidate] = []
    passed: list[Candidate] = []
    for candidate in ranked:
        if len(chosen) == n:
            break
        crowded = taken.get(candidate.sketch, 0) >= cap
        hopeless = merit[candidate] < floor * merit[ranked[0]]
        if crowded or hopeless:
            passed.append(candidate)
            continue
        taken[candidate.sketch] = taken.get(candidate.sketch, 0) + 1
        chosen.append(candidate)
    return chosen + passed[: n - len(chosen)]


def _scores(state: SearchState, candidates: Sequence[Candidate], model: CostModel) -> list[float | None]:
    if not model.trained or not candidates:
        return [None] * len(candidates)
    scores = _predict(state, candidates, model).scores
    return [float(s) for s in np.clip(scores, 0.0, 1.0)]


def _predict(state: SearchState, candidates: Sequence[Candidate], model: CostModel) -> Predictions:
    return state.featuriser.predict(model, candidates, state.task.workload, state.task.target)
