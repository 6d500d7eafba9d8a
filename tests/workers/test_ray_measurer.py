"""The measurer end to end on a local Ray, following a script: real actors, real children, real deaths."""

import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, Measured, MeasurePolicy, MeasureSession, Trial
from tuner.task import Task
from workers.factory import MeasurerConfig
from workers.ray_measurer import RayMeasurer
from workers.script import Entry, Script

WORKLOAD = GemmWorkload(32, 32, 32, "float32", "float32", "float32")
POLICY = MeasurePolicy(run_timeout_s=20.0)
# Ordinals of the one script that all tests share; beyond it every trial has its hash latency.
NOTABLE: dict[int, dict[str, object]] = {
    0: {"latency_s": 0.002},
    1: {"outcome": "BUILD_ERROR", "message": "no such intrinsic"},
    2: {"latency_s": "NaN"},
    3: {"do": "crash"},
    4: {"do": "crash", "stage": "build"},
    5: {"outcome": "LOWER_ERROR"},
    6: {"latency_s": "Infinity"},
    7: {"latency_s": 0.001},
    8: {"do": "sleep", "seconds": 30},
    9: {"do": "sleep", "seconds": 30, "stage": "build"},
    10: {"do": "sleep", "seconds": 2},
    11: {"do": "sleep", "seconds": 2, "stage": "build"},
    12: {"do": "sleep", "seconds": 0.05},
}
SCRIPT = Script(
    trials=tuple(Entry.from_json(NOTABLE.get(i, {})) for i in range(13)), vendor=Entry.from_json({"latency_s": 0.0015})
)


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMeasurer]:
    folder = tmp_path_factory.mktemp("measurer")
    config = MeasurerConfig(
        cache_dir=folder / "cache",
        lock_dir=folder / "locks",
        temp_parent=Path(tempfile.gettempdir()),
        builders=2,
        scenario=SCRIPT,
    )
    measurer = RayMeasurer(config)
    yield measurer
    measurer.close()


@pytest.fixture(scope="module")
def device(measurer: RayMeasurer) -> DeviceInfo:
    (device,) = measurer.devices()
    return device


@pytest.fixture
def session(measurer: RayMeasurer, device: DeviceInfo) -> Iterator[MeasureSession]:
    session = measurer.open(Task(WORKLOAD, device.target), device, POLICY, 0)
    yield session
    session.close()


def trial(ordinal: int, knob: int | None = None, attempt: int = 0) -> Trial:
    candidate = Candidate.of("tile", 1, {"mr": ordinal if knob is None else knob})
    return Trial(1000 + ordinal, ordinal, attempt, candidate)


def collect(session: MeasureSession, limit_s: float = 60.0) -> list[Measured]:
    out: list[Measured] = []
    deadline = time.monotonic() + limit_s
    while session.pending():
        assert time.monotonic() < deadline, f"{session.pending()} trials still pending"
        out += session.results(1.0)
    return out


def test_the_device_is_this_hosts_cpu(device: DeviceInfo) -> None:
    assert device.target.kind == "cpu"
    assert device.device_id.startswith("cpu:")
    assert device.identity.policy == "scripted/warm"
    assert device.healthy


def test_every_candidate_ends_as_the_script_says(session: MeasureSession) -> None:
    assert session.baseline is not None
    name, vendor = session.baseline
    assert (name, vendor.latency_s) == ("torch", 0.0015)
    session.submit([trial(i) for i in range(8)], None)
    results = {m.trial.ordinal: m for m in collect(session)}
    assert [results[i].measurement.outcome for i in range(8)] == [
        Outcome.OK,
        Outcome.BUILD_ERROR,
        Outcome.RUN_ERROR,
        Outcome.RUN_ERROR,
        Outcome.BUILD_ERROR,
        Outcome.LOWER_ERROR,
        Outcome.RUN_ERROR,
        Outcome.OK,
    ]
    assert results[0].measurement.latency_s == 0.002
    assert results[1].measurement.error == "no such intrinsic"
    assert "SIGSEGV" in (results[4].measurement.error or "")
    assert results[1].artifact is None
    digest = results[0].artifact
    assert digest is not None
    assert b"scripted" in session.artifact(digest)
    with pytest.raises(KeyError):
        session.artifact("0" * 64)


def test_one_bad_candidate_of_twenty_costs_one(session: MeasureSession) -> None:
    session.submit([trial(3 if i == 5 else 100 + i) for i in range(20)], None)
    outcomes = [m.measurement.outcome for m in collect(session)]
    assert outcomes.count(Outcome.OK) == 19
    assert outcomes.count(Outcome.RUN_ERROR) == 1


def test_the_same_candidate_has_the_same_hash_latency_in_another_session(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo
) -> None:
    other = measurer.open(Task(WORKLOAD, device.target), device, POLICY, 7)
    try:
        session.submit([trial(50)], None)
        other.submit([trial(60, knob=50)], None)
        (first,), (second,) = collect(session), collect(other)
        assert first.measurement.latency_s == second.measurement.latency_s
    finally:
        other.close()


def test_a_finalist_repeats_its_entry_and_one_from_elsewhere_is_built(session: MeasureSession) -> None:
    session.submit([trial(0), trial(7)], None)
    collect(session)
    stranger = Candidate.of("tile", 1, {"mr": 4096})
    final = session.final([trial(0).candidate, trial(7).candidate, stranger])
    times = {c.name: c.run_secs for c in final.contestants}
    assert times[trial(0).candidate.key] == (0.002,) * POLICY.final_rounds
    assert times[trial(7).candidate.key] == (0.001,) * POLICY.final_rounds
    assert times["vendor:torch"] == (0.0015,) * POLICY.final_rounds
    assert stranger.key in times
    by_name = {c.name: c for c in final.contestants}
    assert by_name[stranger.key].candidate == stranger
    assert session.artifact(by_name[stranger.key].artifact or "")
    assert by_name["vendor:torch"].candidate is None
    assert not final.failures


def test_two_sessions_never_hold_the_device_at_once(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo
) -> None:
    other = measurer.open(Task(WORKLOAD, device.target), device, POLICY, 1)
    try:
        for s, first in ((session, 200), (other, 300)):
            s.submit([trial(12, knob=first + i) for i in range(24)], None)
        intervals = sorted(m.measurement.interval or (0.0, 0.0) for s in (session, other) for m in collect(s))
    finally:
        other.close()
    assert len(intervals) == 48
    assert all(end - start >= 0.05 for start, end in intervals)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(intervals))


@pytest.mark.parametrize("ordinal", [8, 9], ids=["measuring", "building"])
def test_cancel_frees_the_device_at_once(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo, ordinal: int
) -> None:
    session.submit([trial(ordinal), trial(400), trial(401)], None)
    time.sleep(1.0)
    start = time.monotonic()
    session.cancel()
    assert time.monotonic() - start < 10.0
    assert session.pending() == 0
    assert session.results(0.2) == []
    session.cancel()
    other = measurer.open(Task(WORKLOAD, device.target), device, POLICY, 1)
    try:
        other.submit([trial(500)], None)
        assert [m.measurement.outcome for m in collect(other, 15.0)] == [Outcome.OK]
    finally:
        other.close()
    session.submit([trial(501)], None)
    assert [m.trial.ordinal for m in collect(session, 15.0)] == [501]


def kill_while_measuring(measurer: RayMeasurer, device_id: str, pid: int | None) -> None:
    """Send SIGKILL to `pid` once the measuring child works on a candidate."""
    deadline = time.monotonic() + 30.0
    while measurer.doing(device_id) != "measure":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill_later(pid: int | None) -> None:
    assert pid is not None
    threading.Timer(0.7, os.kill, (pid, signal.SIGKILL)).start()


def test_a_killed_measuring_child_is_lost_and_the_session_goes_on(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo
) -> None:
    session.submit([trial(600)], None)
    collect(session)
    pid = measurer.child_pid(device.device_id)
    session.submit([trial(10), trial(601)], None)
    kill_while_measuring(measurer, device.device_id, pid)
    results = {m.trial.ordinal: m.measurement for m in collect(session)}
    assert results[10].outcome is Outcome.WORKER_LOST
    assert results[601].outcome is Outcome.OK


def test_a_killed_builder_is_lost_and_the_session_goes_on(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo
) -> None:
    session.submit([trial(700), trial(701)], None)
    collect(session)
    for pid in measurer.builder_child_pids(device.device_id):
        kill_later(pid)
    session.submit([trial(11), trial(11, knob=702)], None)
    assert {m.measurement.outcome for m in collect(session)} == {Outcome.WORKER_LOST}
    session.submit([trial(703)], None)
    assert [m.measurement.outcome for m in collect(session)] == [Outcome.OK]


def test_a_killed_measuring_actor_is_lost_and_another_takes_over(
    session: MeasureSession, measurer: RayMeasurer, device: DeviceInfo
) -> None:
    session.submit([trial(10), trial(800), trial(801)], None)
    kill_while_measuring(measurer, device.device_id, measurer.actor_pid(device.device_id))
    results = {m.trial.ordinal: m.measurement for m in collect(session)}
    assert results[10].outcome is Outcome.WORKER_LOST
    assert results[800].outcome is Outcome.OK
    assert results[801].outcome is Outcome.OK


def test_artifacts_go_with_the_session(measurer: RayMeasurer, device: DeviceInfo) -> None:
    session = measurer.open(Task(WORKLOAD, device.target), device, POLICY, 0)
    session.submit([trial(900)], None)
    (measured,) = collect(session)
    session.close()
    session.close()
    with pytest.raises(KeyError):
        session.artifact(measured.artifact or "")
