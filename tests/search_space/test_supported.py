"""What no sketch can do on a target is refused with the field."""

import dataclasses

import pytest
from synthetic import TARGET

from search_space.errors import InvalidField
from search_space.registry import check_supported
from search_space.workload import parse_workload


def test_operands_beyond_the_devices_memory_name_the_largest_extent() -> None:
    small = dataclasses.replace(TARGET, memory_bytes=2**20)
    workload = parse_workload({"op": "gemm", "m": 8, "n": 70000, "k": 64, "dtype": "float32"})
    with pytest.raises(InvalidField, match="the operands take") as refused:
        check_supported(workload, small)
    assert refused.value.field == "n"
