"""How GPUs are found, against a driver without hardware, in processes that load it as they would NVIDIA's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers.gpu_host import Gpu, driver_version, find_gpus

ROOT = Path(__file__).parents[2]
MASKS = (None, "4,5,6", "GPU-00000002", "1,GPU-00000007-0000-0000-0000-0000000000ff", "3,9,4", "", "-1")
ASK = "import json; from workers.gpu_host import *; print(json.dumps([[asdict(g) for g in find_gpus(m)] for m in {m}]))"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, list[Gpu]]:
    """What each mask shows; the asking process has a mask of its own, as Ray gives to its actors."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    source = ROOT / "tests/support/fake_libcuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ASK.format(m=MASKS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answers = [[Gpu(**entry) for entry in gpus] for gpus in json.loads(done.stdout)]
    return dict(zip(MASKS, answers, strict=True))


@pytest.mark.parametrize(
    ("mask", "devices"),
    [
        (None, list(range(8))),
        ("4,5,6", [4, 5, 6]),
        ("GPU-00000002", [2]),
        ("1,GPU-00000007-0000-0000-0000-0000000000ff", [1, 7]),
        ("3,9,4", [3]),
        ("", []),
        ("-1", []),
    ],
)
def test_a_mask_shows_the_physical_devices_it_names(
    found: dict[str | None, list[Gpu]], mask: str | None, devices: list[int]
) -> None:
    assert [g.uuid for g in found[mask]] == [f"GPU-{i:08x}-0000-0000-0000-0000000000ff" for i in devices]
    assert [g.model for g in found[mask]] == [f"NVIDIA Fake {i}" for i in devices]


def test_a_gpu_becomes_a_target(found: dict[str | None, list[Gpu]]) -> None:
    target = found["4,5,6"][0].target()
    assert (target.kind, target.arch, target.cores) == ("cuda", "sm_90a", 132)
    assert (target.shared_bytes, target.l2_bytes, target.memory_bytes) == (227 * 1024, 50 << 20, 80 << 30)
    assert found["4,5,6"][0].cuda == "13.0"


def test_architectures_without_instructions_of_their_own_have_no_suffix(found: dict[str | None, list[Gpu]]) -> None:
    ampere = Gpu("GPU-0", "A100", 8, 0, 108, 163 << 10, 40 << 20, 40 << 30, "1", "13.0")
    assert ampere.arch == "sm_80"


def test_an_empty_mask_asks_no_driver() -> None:
    assert find_gpus(" ") == ()


def test_the_drivers_version_is_read_from_the_kernels_own_word(tmp_path: Path) -> None:
    said = tmp_path / "version"
    said.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC 12.2.0\n")
    assert driver_version(said) == "580.159.04"
