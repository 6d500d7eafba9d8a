"""One device, two drivers that know nothing of each other: each with a Ray and a measuring actor of its own."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 40
SCRIPT = {"devices": [{"id": "gpu-0", "kind": "cuda"}], "default": {"do": "sleep", "seconds": 0.05}}


@pytest.mark.slow
def test_measurements_of_two_ray_drivers_never_overlap_on_a_device(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "tests.support.lone_driver", str(script), str(tmp_path), str(COUNT)]
    drivers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "open\n"
    taken: list[tuple[int, float, float]] = []
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("begin\n")
        driver.stdin.flush()
    for number, driver in enumerate(drivers):
        out, _ = driver.communicate(timeout=120)
        taken += [(number, *interval) for interval in json.loads(out.splitlines()[-1])]
    taken.sort(key=lambda t: t[1])
    assert len(taken) == 2 * COUNT
    assert all(end - start >= 0.05 for _, start, end in taken)
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(taken))
    assert sum(a[0] != b[0] for a, b in itertools.pairwise(taken)) >= 2, "they took turns"
