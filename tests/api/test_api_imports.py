"""The HTTP process stays light: a fresh interpreter that imports the application holds no compiler and no trainer."""

import json
import subprocess
import sys

import pytest

HEAVY = ("tvm", "tvm_ffi", "ray", "torch", "xgboost")


@pytest.mark.parametrize("module", ["api", "api.app"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    assert module in loaded
    assert not set(HEAVY) & set(loaded)
