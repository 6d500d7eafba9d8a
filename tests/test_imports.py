"""What must stay light: each import in a process of its own, so that no other test's imports count."""

import subprocess
import sys

import pytest

HEAVY = ("tvm", "tvm_ffi", "ray", "torch", "xgboost")


@pytest.mark.parametrize(
    "module", ["db", "api", "api.app", "tilewright", "tilewright.client", "tilewright.cli.main", "tuner.ports"]
)
def test_a_light_module_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
