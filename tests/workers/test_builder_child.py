"""A builder process: warm, killable, replaced after it died; and real sketches through it."""

import os
import signal
import threading
from pathlib import Path

import pytest

import tilewright
from search_space.candidate import Candidate
from search_space.registry import generate_sketches
from search_space.workload import parse_workload
from tuner.outcome import Outcome
from workers.builder import Builder, BuildRequest
from workers.check import check
from workers.child import ChildSpec
from workers.host import host_target, kernel_names
from workers.inputs import make_inputs
from workers.reference import reference

WORKLOAD = parse_workload({"op": "gemm", "m": 13, "n": 29, "k": 31, "dtype": "float32"})


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def builder(cache_dir):
    builder = Builder(ChildSpec("workers.build.child:make_handler", {"cache_dir": str(cache_dir)}))
    yield builder
    builder.close()


def build(builder, candidate, workload=WORKLOAD, timeout_s=120.0, owner="test"):
    target = host_target().to_json()
    return builder.build(BuildRequest(workload.to_json(), target, candidate.to_json(), timeout_s, owner))


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
        result = build(builder, candidate)
        assert result.outcome is Outcome.OK, result.error
        assert not result.cached
        assert result.build_secs > 0
        kernel = tilewright.load(result.artifact, result.digest)
        assert kernel.manifest["candidate"] == candidate.to_json()
        assert kernel.manifest["launch"]["instructions"] == kernel_names(host_target().features)
        verdict = check(WORKLOAD, {"c": kernel(*inputs.values())}, right)
        assert verdict.ok, (candidate, verdict.message)
        again = build(builder, candidate)
        assert again.cached
        assert again.artifact == result.artifact


def test_an_illegal_choice_is_a_lower_error(builder, candidates):
    stale = type(candidates[0])(candidates[0].sketch, candidates[0].version + 1, candidates[0].choices)
    result = build(builder, stale)
    assert result.outcome is Outcome.LOWER_ERROR
    assert "version" in result.error


def test_timeout_loss_and_abort_each_cost_one_process(builder, candidates):
    other = parse_workload({**WORKLOAD.to_json(), "k": 37})  # not in the cache
    assert build(builder, candidates[0]).ok
    first = builder.child_pid()
    late = build(builder, candidates[-1], other, timeout_s=0.001)
    assert late.outcome is Outcome.BUILD_TIMEOUT
    assert "longer than 0.001 s" in late.error
    assert builder.child_pid() is None
    assert build(builder, candidates[0], other).ok
    assert builder.child_pid() not in (None, first)

    timer = threading.Timer(0.01, os.kill, (builder.child_pid(), signal.SIGKILL))
    timer.start()
    lost = build(builder, candidates[-1], other)
    timer.join()
    assert lost.outcome is Outcome.WORKER_LOST
    assert build(builder, candidates[0], other).ok

    timer = threading.Timer(0.01, builder.abort, ("impatient",))
    timer.start()
    aborted = build(builder, candidates[-1], other, owner="impatient")
    timer.join()
    assert aborted.outcome is Outcome.WORKER_LOST
    assert build(builder, candidates[0], other, owner="impatient").error == "cancelled"


def test_a_child_killed_while_it_starts_is_nobodys_fault(tmp_path, monkeypatch):
    """The out-of-memory killer may come at any time: one more child is tried, then the trial counts as lost."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    builder = Builder(ChildSpec("child_handlers:killed_at_start", {"note": str(tmp_path / "starts")}))
    result = build(builder, Candidate("cpu_gemm_loop", 1, ()))
    assert result.outcome is Outcome.WORKER_LOST
    assert (tmp_path / "starts").read_text() == "xx"
    builder.close()


def test_a_child_whose_imports_fail_is_an_error(tmp_path):
    builder = Builder(ChildSpec("no_such_module:make"))
    result = build(builder, Candidate("cpu_gemm_loop", 1, ()))
    assert result.outcome is Outcome.BUILD_ERROR
    assert "no_such_module" in result.error
    builder.close()
