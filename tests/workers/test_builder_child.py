"""A builder process: warm, killable, replaced after it died; and real sketches through it."""

import os
import signal
import threading
import time

import pytest

import tilewright
from search_space.registry import generate_sketches
from search_space.workload import parse_workload
from tuner.outcome import Outcome
from workers.build.child import BuilderChild
from workers.check import check
from workers.host import host_target, kernel_names
from workers.inputs import make_inputs
from workers.reference import reference

WORKLOAD = parse_workload({"op": "gemm", "m": 13, "n": 29, "k": 31, "dtype": "float32"})


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def builder(cache_dir):
    child = BuilderChild(cache_dir=str(cache_dir))
    yield child
    child.close()


@pytest.fixture(scope="module")
def candidates():
    """The first seed of every sketch that can do the workload."""
    spaces = generate_sketches(WORKLOAD, host_target())
    seeds = [(s, k) for s in spaces for k in s.sketch.seeds(WORKLOAD, host_target())[:1]]
    assert len(seeds) >= 2
    return [space.candidate(knobs) for space, knobs in seeds]


def test_real_sketches_build_and_are_right(builder, candidates):
    inputs = make_inputs(WORKLOAD)
    right = reference(WORKLOAD, inputs)
    for candidate in candidates:
        result = builder.build(WORKLOAD, host_target(), candidate, timeout_s=120)
        assert result.outcome is Outcome.OK, result.error
        assert not result.cached
        assert result.build_secs > 0
        kernel = tilewright.load(result.artifact, result.digest)
        assert kernel.manifest["candidate"] == candidate.to_json()
        assert kernel.manifest["launch"]["instructions"] == kernel_names(host_target().features)
        verdict = check(WORKLOAD, {"c": kernel(*inputs.values())}, right)
        assert verdict.ok, (candidate, verdict.message)
        again = builder.build(WORKLOAD, host_target(), candidate, timeout_s=120)
        assert again.cached
        assert again.artifact == result.artifact


def test_an_illegal_choice_is_a_lower_error(builder, candidates):
    stale = type(candidates[0])(candidates[0].sketch, candidates[0].version + 1, candidates[0].choices)
    result = builder.build(WORKLOAD, host_target(), stale, timeout_s=120)
    assert result.outcome is Outcome.LOWER_ERROR
    assert "version" in result.error


def test_timeout_loss_and_kill_each_cost_one_process(builder, candidates):
    other = parse_workload({**WORKLOAD.to_json(), "k": 37})  # not in the cache
    assert builder.build(WORKLOAD, host_target(), candidates[0], timeout_s=120).ok
    first = builder._living().pid
    late = builder.build(other, host_target(), candidates[-1], timeout_s=0.001)
    assert late.outcome is Outcome.BUILD_TIMEOUT
    assert "longer than 0.001 s" in late.error
    second = builder._living()
    assert second.pid != first
    assert second.wait_ready() is None
    os.kill(second.pid, signal.SIGKILL)
    while second.alive:
        time.sleep(0.01)
    assert builder.build(other, host_target(), candidates[0], timeout_s=120).ok
    timer = threading.Timer(0.01, builder.kill)
    timer.start()
    killed = builder.build(other, host_target(), candidates[-1], timeout_s=120)
    timer.join()
    assert killed.outcome is Outcome.WORKER_LOST
