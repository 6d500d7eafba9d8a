"""The device and its child, without Ray: each misbehaviour ends as its outcome, and the child is replaced."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from search_space.environment import EnvironmentIdentity
from search_space.gemm import GemmWorkload
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers.child import ChildSpec
from workers.device import Device, DeviceSettings
from workers.final_bed import Entrant, OpenTask
from workers.script import Entry

IDENTITY = EnvironmentIdentity("cpu", "model", "arch", 2, "glibc", "", "tvm", "llvm", "scripted/warm")
WORKLOAD = GemmWorkload(32, 32, 32, "float32", "float32", "float32")
POLICY = MeasurePolicy(run_timeout_s=20.0)
TASK = OpenTask(WORKLOAD.to_json(), POLICY, 0, IDENTITY, Entry(latency_s=0.5).to_json())
HURRIED = OpenTask(WORKLOAD.to_json(), MeasurePolicy(run_timeout_s=0.5), 0, IDENTITY, Entry().to_json())
MEMORY = 192 << 20


def scripted_device(lock_dir: Path, memory: int = MEMORY) -> Device:
    child = ChildSpec("workers.measure_child:scripted_child", memory_limit_bytes=memory)
    return Device(DeviceSettings("cpu:test", "cpu:test", str(lock_dir), child))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    device = scripted_device(tmp_path_factory.mktemp("locks"))
    assert device.acquire("session")
    device.warm_up(wait=True)
    yield device
    device.release("session")
    device.close()


def entrant(**entry: object) -> Entrant:
    return Entrant("name", b"artifact", Entry.from_json(entry).to_json())


def test_the_vendor_is_measured_by_the_same_protocol(device: Device) -> None:
    name, measurement = device.baseline("session", TASK)
    assert (name, measurement.outcome, measurement.latency_s) == ("torch", Outcome.OK, 0.5)


@pytest.mark.parametrize(
    ("entry", "outcome", "text"),
    [
        ({"do": "crash"}, Outcome.RUN_ERROR, "SIGSEGV"),
        ({"do": "allocate"}, Outcome.OUT_OF_MEMORY, "the limit is 192 MiB"),
        ({"outcome": "WORKER_LOST"}, Outcome.WORKER_LOST, "SIGKILL"),
        ({"latency_s": "NaN"}, Outcome.RUN_ERROR, "the clock gave nan s"),
        ({"latency_s": "-Infinity"}, Outcome.RUN_ERROR, "the clock gave -inf s"),
        ({"latency_s": 0.0}, Outcome.RUN_ERROR, "the clock gave 0.0 s"),
        ({"outcome": "RUN_ERROR", "message": "illegal instruction"}, Outcome.RUN_ERROR, "illegal instruction"),
        ({"outcome": "WRONG_ANSWER"}, Outcome.WRONG_ANSWER, "the script says WRONG_ANSWER"),
    ],
    ids=lambda value: str(value),
)
def test_each_end_has_its_outcome_and_the_next_candidate_is_measured(
    device: Device, entry: dict[str, object], outcome: Outcome, text: str
) -> None:
    bad = device.measure("session", TASK, entrant(**entry), None)
    assert bad.outcome is outcome
    assert text in (bad.error or "")
    assert bad.run_secs == ()
    assert bad.interval is not None
    good = device.measure("session", TASK, entrant(latency_s=0.25), None)
    assert (good.outcome, good.latency_s, good.ci95_secs) == (Outcome.OK, 0.25, (0.25, 0.25))
    assert good.observation.device_id == "cpu:test"
    assert good.identity == IDENTITY


def test_a_hang_is_ended_at_its_limit_and_a_slow_one_is_not(device: Device) -> None:
    hung = device.measure("session", HURRIED, entrant(do="hang"), None)
    assert hung.outcome is Outcome.RUN_TIMEOUT
    slow = device.measure("session", TASK, entrant(do="sleep", seconds=0.3, latency_s=0.1), None)
    assert (slow.outcome, slow.latency_s) == (Outcome.OK, 0.1)
    start, end = slow.interval or (0.0, 0.0)
    assert end - start >= 0.3


def test_a_crash_costs_one_child_and_the_spare_takes_over(device: Device) -> None:
    device.warm_up(wait=True)
    before = device.child_pid()
    assert device.measure("session", TASK, entrant(do="crash"), None).outcome is Outcome.RUN_ERROR
    assert device.measure("session", TASK, entrant(), None).outcome is Outcome.OK
    assert device.child_pid() not in (None, before)


def test_a_kill_from_outside_is_nobodys_fault(device: Device) -> None:
    device.warm_up(wait=True)
    pid = device.child_pid()
    assert pid is not None
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    timer.start()
    lost = device.measure("session", TASK, entrant(do="sleep", seconds=5.0), None)
    assert lost.outcome is Outcome.WORKER_LOST
    assert device.measure("session", TASK, entrant(), None).outcome is Outcome.OK


def test_a_loser_is_raced_out(device: Device) -> None:
    lost = device.measure("session", TASK, entrant(latency_s=0.5), 0.2)
    assert lost.raced_out
    assert lost.outcome is Outcome.OK


def test_a_final_survives_its_worst_contestant(device: Device) -> None:
    entries = {"a": {"latency_s": 0.5}, "b": {"do": "crash"}, "c": {"latency_s": 0.25}, "d": {"latency_s": "NaN"}}
    entrants = [Entrant(name, b"x", Entry.from_json(e).to_json()) for name, e in entries.items()]
    contest, _, (start, end) = device.final("session", TASK, entrants, "vendor:torch")
    assert set(contest.times) == {"vendor:torch", "a", "c"}
    assert contest.times["c"] == (0.25,) * POLICY.final_rounds
    assert "SIGSEGV" in contest.failures["b"]
    assert "nan" in contest.failures["d"]
    assert start <= end


def test_a_session_that_does_not_hold_the_device_measures_nothing(device: Device) -> None:
    assert not device.acquire("other")
    refused = device.measure("other", TASK, entrant(), None)
    assert refused.outcome is Outcome.WORKER_LOST
    assert "does not hold" in (refused.error or "")
    device.release("other")


def test_cancel_ends_a_hang_and_frees_the_device(tmp_path: Path) -> None:
    device = scripted_device(tmp_path)
    try:
        assert device.acquire("a")
        device.warm_up(wait=False)
        threading.Timer(0.3, device.cancel, ("a",)).start()
        start = time.monotonic()
        ended = device.measure("a", TASK, entrant(do="hang"), None)
        assert time.monotonic() - start < POLICY.run_timeout_s / 2
        assert ended.outcome is Outcome.WORKER_LOST
        assert device.acquire("b")
        assert device.measure("b", TASK, entrant(), None).outcome is Outcome.OK
    finally:
        device.close()


def test_the_child_dies_with_a_device_that_is_closed(tmp_path: Path) -> None:
    device = scripted_device(tmp_path)
    device.warm_up(wait=False)
    pid = device.child_pid()
    assert pid is not None
    device.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
