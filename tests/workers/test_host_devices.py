"""What the children of each device are shown."""

from pathlib import Path

from workers import host_devices
from workers.config import MeasurerConfig
from workers.gpu_host import VISIBLE, Gpu

GPUS = tuple(
    Gpu(f"GPU-{i:08x}-0000-0000-0000-000000000000", "H200", 9, 0, 132, 227 << 10, 60 << 20, 139 << 30, "580.1", "13.0")
    for i in range(2)
)


def test_a_gpus_child_sees_that_gpu_alone_and_builders_see_none(tmp_path: Path) -> None:
    config = MeasurerConfig(tmp_path, tmp_path, tmp_path, gpus=GPUS)
    child = host_devices.settings(GPUS[1].uuid, config).child
    assert child.environment[VISIBLE] == GPUS[1].uuid
    assert child.entry.endswith(":cuda_child")
    cpu = host_devices.settings(host_devices.device_ids(GPUS)[0], config).child
    assert (cpu.environment[VISIBLE], cpu.entry) == ("", "workers.measure_child:cpu_child")
    assert host_devices.builder_child(config).environment[VISIBLE] == ""
    assert len({host_devices.settings(d, config).lock_name for d in host_devices.device_ids(GPUS)}) == 3
