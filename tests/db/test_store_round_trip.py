"""What goes in comes out: every stored noun, with whatever values it may hold."""

import dataclasses
import hashlib
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_nouns import TARGET, best_config, claimed

from db.mapping import measurement_of, measurement_text
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity, Observation
from search_space.target import Target, TargetQuery
from search_space.workload import parse_workload
from tuner.job import JobSpec, TaskSpec
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Measured
from tuner.roofs import Roofs
from tuner.task import Task

# The store of a test is shared by its examples: each makes its own rows.
on_one_store = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text("abcdefgh_", min_size=1, max_size=8)
positive = st.floats(min_value=1e-12, max_value=1e6)
extents = st.integers(1, 2**20)
counts = st.integers(0, 2**40)
dtypes = st.sampled_from(["float32", "float16", "bfloat16", "float8_e4m3"])

gemms = st.fixed_dictionaries(
    {"op": st.just("gemm"), "m": extents, "n": extents, "k": extents, "dtype": dtypes},
    optional={
        "batch": st.integers(1, 64),
        "trans_a": st.booleans(),
        "trans_b": st.booleans(),
        "epilogue": st.sampled_from(["none", "bias", "bias+gelu"]),
        "dtype_out": dtypes,
        "b_constant": st.booleans(),
    },
)
attentions = st.fixed_dictionaries(
    {
        "op": st.just("attention"),
        "heads": st.integers(1, 64),
        "seq_q": st.integers(1, 2**16),
        "seq_kv": st.integers(1, 2**16),
        "head_dim": st.integers(1, 256),
        "dtype": dtypes,
    },
    optional={
        "batch": st.integers(1, 64),
        "causal": st.booleans(),
        "window_left": st.integers(-1, 2**17),
        "softcap": st.floats(0.0, 100.0),
        "scale": positive,
        "lse": st.booleans(),
        "layout": st.sampled_from(["bhsd", "bshd"]),
    },
)
workloads = st.one_of(gemms, attentions).map(parse_workload)
queries = st.builds(
    TargetQuery,
    st.sampled_from(["auto", "cpu"]),
    st.none() | words.filter(bool),
    st.none() | words.filter(bool),
    st.none() | st.integers(1, 999),
)
specs = st.builds(
    JobSpec,
    tasks=st.lists(st.builds(TaskSpec, workloads, positive), min_size=1, max_size=4).map(tuple),
    target=queries,
    name=words,
    max_trials=st.integers(1, 10**6),
    max_seconds=st.none() | positive,
    preset=st.sampled_from(["quick", "standard", "thorough"]),
    seed=st.integers(0, 2**63 - 1),
    priority=st.integers(-100, 100),
)
targets = st.builds(
    Target, st.just("cpu"), words, words, st.integers(1, 999), *[counts] * 6, st.lists(words, max_size=4).map(tuple)
)
identities = st.builds(EnvironmentIdentity, st.just("cpu"), words, words, st.integers(1, 999), *[words] * 5)
knobs = st.dictionaries(names, st.one_of(st.integers(-(2**60), 2**60), st.booleans(), words), max_size=5)
candidates = st.builds(Candidate.of, names, st.integers(1, 99), knobs)
observations = st.builds(
    Observation,
    words,
    words,
    st.none() | st.integers(0, 9999),
    st.none() | positive,
    st.none() | st.floats(-50, 150),
    st.booleans(),
    st.dictionaries(names, st.one_of(words, st.integers(), st.booleans(), positive, st.none()), max_size=3),
)
intervals = st.none() | st.tuples(positive, positive)
shared = {
    "interval": intervals,
    "identity": st.none() | identities,
    "observation": observations,
    "build_secs": positive,
    "max_rel_err": st.none() | st.floats(0.0, 1e300),
    "ci95_secs": intervals,
    "raced_out": st.booleans(),
}
measurements = st.one_of(
    st.builds(Measurement, st.just(Outcome.OK), st.lists(positive, min_size=1, max_size=6).map(tuple), **shared),
    st.builds(
        Measurement,
        st.sampled_from([o for o in Outcome if o is not Outcome.OK]),
        error=st.none() | words,
        **shared,
    ),
)


@on_one_store
@given(spec=specs, at=st.floats(0, 1e10))
def test_a_job_comes_back_as_it_was_asked(store, spec, at):
    job, _ = store.create_job(spec, None, at)
    assert (job.spec, job.created_at) == (spec, at)
    assert [(t.workload, t.weight) for t in job.tasks] == [(t.workload, t.weight) for t in spec.tasks]


@on_one_store
@given(target=targets, found=st.lists(st.tuples(candidates, measurements), max_size=4, unique_by=lambda f: f[0].key))
def test_a_record_comes_back_as_it_was_measured(store, target, found):
    spec = JobSpec((TaskSpec(parse_workload({"op": "gemm", "m": 1, "n": 1, "k": 1, "dtype": "float32"})),))
    lease = claimed(store, spec, target)
    task = lease.tasks[0].task_id
    trials = store.reserve(lease, task, [(candidate, 0.25) for candidate, _ in found])
    assert [t.candidate for t in trials] == [candidate for candidate, _ in found]
    for trial, (_, measurement) in zip(trials, found, strict=True):
        store.commit(lease, task, Measured(trial, measurement))
    records = store.records(lease, task)
    assert [(r.candidate, r.measurement, r.predicted_score) for r in records] == [(c, m, 0.25) for c, m in found]
    assert {r.task for r in records} <= {Task(spec.tasks[0].workload, target)}
    latencies = [m.latency_s for _, m in found]
    assert [v.latency_s for v in store.trials(lease.job_id, None, None, 9, None).items] == latencies


@on_one_store
@given(candidate=candidates, identity=identities, artifact=st.binary(max_size=64), latency=positive, pair=intervals)
def test_a_schedule_comes_back_as_it_was_promoted(store, candidate, identity, artifact, latency, pair):
    best = dataclasses.replace(
        best_config(),
        candidate=candidate,
        identity=identity,
        artifact=hashlib.sha256(artifact).hexdigest(),
        latency_s=latency,
        speedup_ci95=pair,
        baseline_name=None,
    )
    workload = parse_workload({"op": "gemm", "m": 3, "n": 1, "k": 1, "dtype": "float32"})
    lease = claimed(store, JobSpec((TaskSpec(workload),)))
    schedule = store.schedule(store.promote(lease, lease.tasks[0].task_id, best, artifact))
    assert (schedule.best, schedule.workload, schedule.target) == (best, workload, TARGET)
    assert store.artifact(best.artifact) == artifact


@on_one_store
@given(device_id=words, target=targets, identity=identities, rate=positive, query=queries, workload=workloads)
def test_devices_and_lookups_come_back(store, device_id, target, identity, rate, query, workload):
    store.heartbeat_devices(f"r{device_id!r}", [DeviceInfo(device_id, target, identity, Roofs({"f": rate}, rate))], 9.0)
    shown = device_id.replace("\x00", "�")
    assert [d.target for d in store.devices(0.0) if d.device_id == shown][-1:] == [target]
    store.count_lookup(workload, query, "missed", math.pi)
    assert (workload, query) in [(c.workload, c.target) for c in store.lookups(1000, None).items]


@given(measurement=measurements, odd=st.sampled_from([math.nan, math.inf, -math.inf]))
@settings(max_examples=30, deadline=None)
def test_a_number_that_does_not_exist_becomes_null(measurement, odd):
    broken = dataclasses.replace(measurement, max_rel_err=odd, observation=Observation(details={"a": [odd, 1.0]}))
    text = measurement_text(broken)
    json.loads(text, parse_constant=pytest.fail)  # called for NaN and Infinity
    found = measurement_of(text)
    assert (found.max_rel_err, found.observation.details) == (None, {"a": [None, 1.0]})
