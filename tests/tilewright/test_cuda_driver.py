"""The driver's structures as ctypes lays them out, and what is said where there is no driver."""

import ctypes

import pytest

from tilewright.runtime import ForeignArtifact, cuda_program
from tilewright.runtime import cuda_driver as cuda
from tilewright.runtime.cuda import check_arch


def test_structures_have_the_drivers_sizes() -> None:
    assert ctypes.sizeof(cuda.LaunchAttribute) == 72
    assert ctypes.sizeof(cuda.LaunchConfig) == 56


@pytest.mark.parametrize(
    ("cluster", "dependent", "expected"),
    [(1, False, []), (2, False, [(4, [2, 1, 1])]), (1, True, [(6, [1])]), (4, True, [(4, [4, 1, 1]), (6, [1])])],
)
def test_launch_attributes(cluster: int, dependent: bool, expected: list[tuple[int, list[int]]]) -> None:
    config = cuda.launch_config(grid=264, block=384, shared=1024, cluster=cluster, dependent=dependent)
    assert (config.grid_x, config.grid_y, config.block_x, config.shared) == (264, 1, 384, 1024)
    found = [config.attributes[i] for i in range(config.attribute_count)]
    assert [(a.id, list(a.value)[: len(e[1])]) for a, e in zip(found, expected)] == expected
    assert len(found) == len(expected)


def test_a_missing_driver_is_reported() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(RuntimeError, match="NVIDIA driver"):
            cuda.driver()
    else:
        assert cuda.driver() is cuda.driver()


def test_a_pointer_that_a_wide_load_would_fault_on_is_refused_by_its_operand() -> None:
    argument = {"kind": "pointer", "operand": "b", "align": 16}
    owner, _ = cuda_program._argument(argument, {}, {"b": 4096})
    assert owner.value == 4096  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="b: must begin at a multiple of 16 bytes"):
        cuda_program._argument(argument, {}, {"b": 4098})


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_89", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_100a", (10, 0), True),
        ("sm_100f", (10, 3), True),
    ],
)
def test_a_cubin_for_another_card_is_foreign(arch: str, capability: tuple[int, int], runs: bool) -> None:
    if runs:
        check_arch({"arch": arch}, capability)
    else:
        with pytest.raises(ForeignArtifact, match=arch):
            check_arch({"arch": arch}, capability)
