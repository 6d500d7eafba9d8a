"""The child that owns a GPU: what is right is timed, what is wrong is refused, and no fault outlives its cause."""

import statistics
from collections.abc import Callable, Iterator

import plain_kernels
import pytest

from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers.child import ChildSpec
from workers.device import Device, DeviceSettings
from workers.final_bed import Entrant, OpenTask
from workers.gpu_host import VISIBLE, Gpu

pytestmark = pytest.mark.gpu
POLICY = MeasurePolicy(cache="cold", run_timeout_s=6.0)
Measure = Callable[[str], Measurement]


@pytest.fixture(scope="module")
def device(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    child = ChildSpec("workers.measure_child:cuda_child", {"uuid": gpu.uuid}, {VISIBLE: gpu.uuid})
    locks = str(tmp_path_factory.mktemp("locks"))
    device = Device(DeviceSettings(gpu.uuid, gpu.uuid, locks, child))
    assert device.acquire("test")
    device.warm_up(wait=True)
    yield device
    device.close()


@pytest.fixture(scope="module")
def task(gpu: Gpu) -> OpenTask:
    return OpenTask(plain_kernels.WORKLOAD.to_json(), POLICY, 0, gpu.identity("nvcc"))


@pytest.fixture
def measure(device: Device, task: OpenTask, gpu: Gpu) -> Measure:
    def measured(name: str, workspace_bytes: int = 0) -> Measurement:
        artifact = plain_kernels.artifact(name, gpu.target(), workspace_bytes=workspace_bytes)
        return device.measure("test", task, Entrant(name, artifact), None)

    return measured


def test_a_right_kernel_is_timed_and_what_the_card_did_is_kept(measure: Measure, gpu: Gpu) -> None:
    found = measure("right")
    assert found.outcome is Outcome.OK, found.error
    assert found.latency_s is not None
    assert 1e-6 < found.latency_s < 1e-3
    assert found.max_rel_err is not None
    assert 0.0 < found.max_rel_err < 4e-3
    seen = found.observation
    assert seen.device_id == gpu.uuid
    assert seen.details["cold"] is True
    assert seen.sm_clock_mhz is not None
    assert seen.power_w is not None
    assert "throttle_reasons" in seen.details


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("outside", "outside the memory of operand c"),
        ("spoils_input", "wrote to its input a"),
        ("forgets", "elements are wrong"),
        ("rounds", "elements are wrong"),
    ],
)
def test_a_wrong_kernel_is_refused(measure: Measure, name: str, words: str) -> None:
    found = measure(name)
    assert found.outcome is Outcome.WRONG_ANSWER, found
    assert words in (found.error or "")


@pytest.mark.parametrize(("name", "outcome"), [("illegal", Outcome.RUN_ERROR), ("hang", Outcome.RUN_TIMEOUT)])
def test_a_fault_costs_its_cause_alone(measure: Measure, device: Device, name: str, outcome: Outcome) -> None:
    assert measure("right").outcome is Outcome.OK
    before = device.child_pid()
    found = measure(name)
    assert found.outcome is outcome, found
    if name == "illegal":
        assert "illegal memory access" in (found.error or "")
    assert measure("right").outcome is Outcome.OK
    assert device.child_pid() != before


def test_a_workspace_that_does_not_fit_is_out_of_memory_and_harms_nothing(measure: Callable[..., Measurement]) -> None:
    assert measure("right", 1 << 42).outcome is Outcome.OUT_OF_MEMORY
    assert measure("right").outcome is Outcome.OK


def test_the_final_interleaves_the_vendor_and_drops_what_faults(device: Device, task: OpenTask, gpu: Gpu) -> None:
    name, vendor = device.baseline("test", task)
    assert name == "cublas"
    assert vendor.outcome is Outcome.OK, vendor.error
    entrants = [Entrant(n, plain_kernels.artifact(n, gpu.target())) for n in ("right", "illegal")]
    contest, errors, _ = device.final("test", task, entrants, f"vendor:{name}")
    assert set(contest.times) == {"vendor:cublas", "right"}
    assert "illegal" in contest.failures
    assert len(contest.times["right"]) == POLICY.final_rounds
    assert 0.5 < statistics.median(contest.times["vendor:cublas"]) / (vendor.latency_s or 1.0) < 2.0
    assert errors["right"] < 4e-3
