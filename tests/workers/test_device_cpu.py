"""The real measuring child on this host: a built kernel, torch beside it, misbehaving kernels under the real check."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from search_space.environment import EnvironmentIdentity
from search_space.gemm import GemmWorkload
from search_space.registry import generate_sketches
from search_space.sketch import legal_points
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers.build import build_candidate
from workers.child import ChildSpec
from workers.device import Device, DeviceSettings
from workers.final_bed import Entrant, OpenTask
from workers.host import host_target
from workers.script import Entry

IDENTITY = EnvironmentIdentity("cpu", "model", "arch", 1, "glibc", "", "tvm", "llvm", "v1/warm")
WORKLOAD = GemmWorkload(24, 20, 36, "float32", "float32", "float32")
POLICY = MeasurePolicy(time_share_s=0.1, final_time_s=1.0)
TASK = OpenTask(WORKLOAD.to_json(), POLICY, 0, IDENTITY)


def make_device(folder: Path, entry: str) -> Device:
    # One thread: the values and outcomes are tested here, and this machine may be busy.
    child = ChildSpec(f"workers.measure_child:{entry}", {"cores": 1}, {"OMP_NUM_THREADS": "1"}, 2 << 30)
    device = Device(DeviceSettings("cpu:test", entry, str(folder), child))
    assert device.acquire("session")
    return device


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    device = make_device(tmp_path_factory.mktemp("real"), "cpu_child")
    yield device
    device.close()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    device = make_device(tmp_path_factory.mktemp("scripted"), "scripted_child")
    yield device
    device.close()


@pytest.fixture(scope="module")
def artifacts() -> list[tuple[str, bytes]]:
    target = host_target()
    space = generate_sketches(WORKLOAD, target)[0]
    points = legal_points(space)
    built = []
    for _ in range(2):
        candidate = space.candidate(next(points))
        result = build_candidate(WORKLOAD, target, candidate)
        assert result.artifact is not None, result.error
        built.append((candidate.key, result.artifact))
    return built


def test_torch_and_a_real_kernel_are_measured(device: Device, artifacts: list[tuple[str, bytes]]) -> None:
    name, vendor = device.baseline("session", TASK)
    assert (name, vendor.outcome, vendor.error) == ("torch", Outcome.OK, None)
    measured = device.measure("session", TASK, Entrant(*artifacts[0]), None)
    assert measured.outcome is Outcome.OK, measured.error
    for measurement in (vendor, measured):
        assert len(measurement.run_secs) >= 6
        low, high = measurement.ci95_secs or (0.0, 0.0)
        assert 0.0 < low <= (measurement.latency_s or 0.0) <= high
        assert measurement.max_rel_err is not None
        assert measurement.max_rel_err < 1e-2
        assert measurement.observation.details["calls_per_repeat"]


def test_a_damaged_artifact_is_an_error_of_its_own(device: Device, artifacts: list[tuple[str, bytes]]) -> None:
    bad = device.measure("session", TASK, Entrant("bad", artifacts[0][1][:-100]), None)
    assert bad.outcome is Outcome.RUN_ERROR
    assert "damaged artifact" in (bad.error or "")
    assert device.measure("session", TASK, Entrant(*artifacts[0]), None).outcome is Outcome.OK


def test_the_final_measures_all_in_the_same_rounds(device: Device, artifacts: list[tuple[str, bytes]]) -> None:
    entrants = [Entrant(*a) for a in artifacts]
    contest, errors, (start, end) = device.final("session", TASK, entrants, "vendor:torch")
    assert set(contest.times) == {"vendor:torch", *(name for name, _ in artifacts)}
    assert len({len(times) for times in contest.times.values()}) == 1
    assert all(t > 0.0 for times in contest.times.values() for t in times)
    assert set(errors) == set(contest.times)
    assert not contest.failures
    assert start < end


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("write_nothing", "is nan"),
        ("write_half", "is nan"),
        ("accumulate", "is nan"),
        ("write_outside", "wrote after the memory of operand c"),
    ],
)
def test_a_scripted_kernel_meets_the_real_check(scripted: Device, action: str, text: str) -> None:
    wrong = scripted.measure("session", TASK, Entrant("x", b"", Entry(do=action).to_json()), None)
    assert wrong.outcome is Outcome.WRONG_ANSWER
    assert text in (wrong.error or "")


def test_two_tasks_take_turns_on_one_child(device: Device, artifacts: list[tuple[str, bytes]]) -> None:
    other = OpenTask(GemmWorkload(8, 8, 8, "float32", "float32", "float32").to_json(), POLICY, 0, IDENTITY)
    pid = device.child_pid()
    assert device.baseline("session", other)[1].outcome is Outcome.OK
    mismatched = device.measure("session", other, Entrant(*artifacts[0]), None)
    assert mismatched.outcome is Outcome.RUN_ERROR
    assert "expected shape" in (mismatched.error or "")
    assert device.measure("session", TASK, Entrant(*artifacts[0]), None).outcome is Outcome.OK
    assert device.child_pid() == pid
