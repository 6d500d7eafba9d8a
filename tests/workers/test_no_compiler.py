"""A host without a C compiler still tells what it is, so that its jobs can fail with the reason (cases O10)."""

import contextlib
from pathlib import Path

import pytest

from workers.device_probe import DeviceProbe, ToolMissing


def test_a_device_without_a_compiler_is_known_without_roofs(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    probe = DeviceProbe("cpu", 0, None, tmp_path, {"PATH": str(tools)})
    found = probe.info(contextlib.nullcontext)
    assert found.roofs is None
    assert found.target.kind == "cpu"
    with pytest.raises(ToolMissing, match="no C compiler on PATH"):
        probe._ask({"do": "roofs", "target": found.target.to_json()}, contextlib.nullcontext)
