"""Tests that need a CUDA device; without one they skip and say why."""

import pytest

from workers.gpu_host import Gpu, find_gpus


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The first GPU that this process may use."""
    found = find_gpus(None)
    if not found:
        pytest.skip("no CUDA device: the driver is missing or shows none")
    return found[0]
