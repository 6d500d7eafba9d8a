"""CUDA_VISIBLE_DEVICES means to us what it means to CUDA."""

import pytest

from workers.gpu_host import Gpu, find_gpus

pytestmark = pytest.mark.gpu


def test_what_is_found_describes_a_physical_device(gpu: Gpu) -> None:
    assert gpu.uuid.startswith("GPU-")
    assert gpu.arch.startswith(f"sm_{gpu.major}{gpu.minor}")
    assert gpu.multiprocessors > 0
    assert gpu.shared_bytes >= 48 << 10
    assert gpu.memory_bytes > 1 << 30
    assert gpu.driver[0].isdigit()


def test_masks(gpu: Gpu) -> None:
    assert find_gpus("") == ()
    assert find_gpus("-1") == ()
    assert find_gpus("0") == (gpu,)
    assert find_gpus(gpu.uuid) == (gpu,)
    assert find_gpus(gpu.uuid[:13]) == (gpu,)
    assert find_gpus(str(len(find_gpus(None)))) == ()
