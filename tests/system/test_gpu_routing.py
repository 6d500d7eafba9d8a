"""Several devices behind one measurer, and batches in flight, on scripted GPUs: real Ray, actors and children."""

import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from api.runner.service import Runner
from api.wiring import build_store, policies
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.target import TargetQuery
from tuner.idle import BUILT_AT
from tuner.job import JobSpec, TaskSpec
from tuner.outcome import Outcome
from tuner.ports import DeviceInfo, MeasureSession, Trial
from tuner.task import Task, TuningRecord
from workers.config import MeasurerConfig
from workers.gpu_host import Gpu
from workers.ray_measurer import RayMeasurer
from workers.script import Entry, Script

pytestmark = pytest.mark.slow

WORKLOAD = GemmWorkload.from_json({"m": 64, "n": 512, "k": 512, "dtype": "bf16", "trans_b": True})
GPUS = tuple(
    Gpu(f"GPU-{i:08x}-0000-0000-0000-000000000000", "H200", 9, 0, 132, 227 << 10, 60 << 20, 139 << 30, "580.1", "13.0")
    for i in range(2)
)
TRIALS = 24
# Slow builds and measurements here and there: what ends first must not decide what is tried next.
SLOW: Mapping[int, dict[str, object]] = {
    1: {"do": "sleep", "seconds": 1.0, "stage": "build"},
    6: {"do": "sleep", "seconds": 0.7},
    9: {"do": "sleep", "seconds": 0.8, "stage": "build"},
}


def measurer(folder: Path, slow: Mapping[int, dict[str, object]]) -> RayMeasurer:
    script = Script(trials=tuple(Entry.from_json(slow.get(i, {})) for i in range(TRIALS)))
    temporary = Path(tempfile.gettempdir())
    return RayMeasurer(MeasurerConfig(folder / "c", folder / "l", temporary, builders=2, scenario=script, gpus=GPUS))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMeasurer]:
    made = measurer(tmp_path_factory.mktemp("slow"), SLOW)
    yield made
    made.close()


def devices(made: RayMeasurer) -> dict[str, DeviceInfo]:
    return {d.device_id: d for d in made.devices()}


def test_every_gpu_is_a_device_with_its_uuid_and_the_cpu_is_one_too(slow: RayMeasurer) -> None:
    found = devices(slow)
    assert {d.target.kind for d in found.values()} == {"cpu", "cuda"}
    assert {g.uuid for g in GPUS} <= set(found)
    gpu = found[GPUS[1].uuid]
    assert gpu.target == GPUS[1].target()
    assert gpu.identity.policy == "scripted/cold"
    assert gpu.identity.driver == "580.1"


def session(made: RayMeasurer, device: DeviceInfo) -> MeasureSession:
    return made.open(Task(WORKLOAD, device.target), device, policies()["cuda"], 0)


def intervals(open_session: MeasureSession) -> list[tuple[float, float]]:
    out = []
    while open_session.pending():
        out += [m.measurement.interval or (0.0, 0.0) for m in open_session.results(1.0)]
    return sorted(out)


def test_two_gpus_measure_at_the_same_time(slow: RayMeasurer) -> None:
    first, second = (session(slow, devices(slow)[g.uuid]) for g in GPUS)
    try:
        for number, s in enumerate((first, second)):
            s.submit([Trial(0, 6, 0, Candidate.of("x", 1, {"v": 10 * number + i})) for i in range(2)], None)
        one, two = intervals(first), intervals(second)
    finally:
        first.close()
        second.close()
    assert one[0][0] < two[-1][1]
    assert two[0][0] < one[-1][1]


def test_a_warm_policy_is_refused_for_a_gpu(slow: RayMeasurer) -> None:
    gpu = devices(slow)[GPUS[0].uuid]
    with pytest.raises(ValueError, match="measured cold"):
        slow.open(Task(WORKLOAD, gpu.target), gpu, policies()["cpu"], 0)


def tuned(made: RayMeasurer, folder: Path) -> list[TuningRecord]:
    """Records of one job on a GPU, in trial order."""
    store = build_store(f"sqlite:///{folder / 'jobs.db'}", migrate=True)
    try:
        job, _ = store.create_job(JobSpec((TaskSpec(WORKLOAD),), TargetQuery("cuda"), max_trials=TRIALS), None, 0.0)
        runner = Runner(store, made, policies(), "test", 60.0, threading.Event(), learns=False)
        assert runner.run_once()
        view = store.job(job.id)
        assert (view.state.value, view.error) == ("completed", None)
        target = next(d.target for d in made.devices() if d.target.kind == "cuda")
        return sorted(store.related_records(Task(WORKLOAD, target), 1000), key=lambda r: r.trial)
    finally:
        store.close()


def test_one_seed_tries_one_list_whatever_ends_first_and_builds_go_on_while_the_device_measures(
    slow: RayMeasurer, tmp_path: Path
) -> None:
    with_delays = tuned(slow, tmp_path)
    slow.close()
    quick = measurer(tmp_path, {})
    try:
        (tmp_path / "again").mkdir()
        without = tuned(quick, tmp_path / "again")
    finally:
        quick.close()
    assert [r.trial for r in with_delays] == list(range(TRIALS))
    assert [r.candidate for r in with_delays] == [r.candidate for r in without]
    assert {r.measurement.outcome for r in with_delays} == {Outcome.OK}
    held = with_delays[6].measurement.interval
    assert held is not None
    built = [float(str(r.measurement.observation.details[BUILT_AT])) for r in with_delays]
    assert any(held[0] < at < held[1] for at in built), "nothing was built while trial 6 held the device"
