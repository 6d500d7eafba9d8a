import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import FINE, Plain, Thorny, Tiled, space

from search_space.knob import Knob
from search_space.sketch import Space, legal_points
from tuner.presets import EvolutionConfig, SamplingConfig
from tuner.search.sampler import SpaceSampler

CONFIG = SamplingConfig()


def listed() -> SpaceSampler:
    return SpaceSampler(space(Plain()), CONFIG)


def large() -> SpaceSampler:
    return SpaceSampler(space(Tiled(tiles=FINE)), CONFIG)


def test_a_small_space_is_listed_exactly():
    sampler = listed()
    assert sampler.points is not None
    assert len(sampler.points) == 9  # 5 * 2, one of them illegal
    assert {c.choices for c in sampler.points} == {
        sampler.space.candidate(k).choices for k in legal_points(sampler.space)
    }
    assert large().points is None


def test_fresh_ends_when_the_space_does():
    sampler, rng = listed(), np.random.default_rng(0)
    first = sampler.fresh(6, (), rng)
    rest = sampler.fresh(6, set(first), rng)
    assert (len(first), len(rest)) == (6, 3)
    assert sampler.points is not None
    assert set(first) | set(rest) == set(sampler.points)
    assert sampler.fresh(1, set(sampler.points), rng) == []


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_draws_of_a_large_space_are_legal_and_distinct(seed: int, n: int):
    sampler = large()
    drawn = sampler.fresh(n, (), np.random.default_rng(seed))
    assert len(drawn) == n == len(set(drawn))
    assert all(sampler.holds(c) for c in drawn)


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_variation_stays_legal_and_moves(seed: int):
    sampler, rng = large(), np.random.default_rng(seed)
    a, b = sampler.fresh(2, (), rng)
    child = sampler.mutate(a, EvolutionConfig(), rng)
    assert child is not None
    assert child != a
    assert sampler.holds(child)
    mixed = sampler.cross(a, b, rng)
    assert mixed is not None
    assert sampler.holds(mixed)
    assert all(v in (a.knobs[n], b.knobs[n]) for n, v in mixed.choices)


def test_a_single_mutation_is_a_step():
    sampler, rng = large(), np.random.default_rng(0)
    config = EvolutionConfig(extra_mutation_probability=0.0, far_jump_probability=0.0)
    domains = {k.name: k for k in sampler.space.knobs}
    for parent in sampler.fresh(20, (), rng):
        child = sampler.mutate(parent, config, rng)
        assert child is not None
        changed = [n for n, v in child.choices if parent.knobs[n] != v]
        assert len(changed) == 1
        assert child.knobs[changed[0]] in domains[changed[0]].neighbours(parent.knobs[changed[0]])


def test_a_large_space_with_hardly_a_legal_point_ends_by_bounded_tries():
    sampler, rng = SpaceSampler(space(Thorny()), CONFIG), np.random.default_rng(0)
    assert sampler.points is None
    seed = sampler.space.candidate(sampler.space.sketch.seeds(sampler.space.workload, sampler.space.target)[0])
    found = sampler.fresh(16, (), rng, anchors=[seed])
    assert len(found) == 16 == len(set(found))  # by walking from the one that is known
    assert {c.replace(tile_n=16) for c in found} == {seed}
    every = {seed.replace(tile_n=n) for n in FINE}
    assert sampler.fresh(16, every, rng, anchors=[seed]) == []


def test_candidates_of_another_sketch_version_or_knobs_are_not_held():
    sampler = listed()
    assert sampler.points is not None
    good = sampler.points[0]
    assert sampler.holds(good)
    assert not sampler.holds(good.replace(extra=1))
    assert not sampler.holds(type(good)(good.sketch, good.version + 1, good.choices))
    assert not sampler.holds(good.replace(block=16, unroll=2))


def test_a_space_without_a_choice_has_one_point():
    base = space(Plain())
    one = Space(base.sketch, base.workload, base.target, (Knob("block", (4,)), Knob("unroll", (1,))))
    sampler, rng = SpaceSampler(one, CONFIG), np.random.default_rng(0)
    assert len(sampler.fresh(5, (), rng)) == 1
    unlisted = SpaceSampler(one, SamplingConfig(enumerate_limit=0))
    only = unlisted.fresh(5, (), rng)
    assert len(only) == 1
    assert unlisted.mutate(only[0], EvolutionConfig(), rng) is None


@pytest.mark.parametrize("limit", [0, 10**6])
def test_an_illegal_space_yields_nothing(limit: int):
    base = space(Plain(values=(16,)))
    none = Space(base.sketch, base.workload, base.target, (Knob("block", (16,)), Knob("unroll", (2,))))
    assert SpaceSampler(none, SamplingConfig(enumerate_limit=limit)).fresh(3, (), np.random.default_rng(0)) == []
