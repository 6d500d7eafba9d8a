"""Run as a process by the test of two drivers: measures on a scripted device through a Ray of its own.

``python -m tests.support.lone_driver SCRIPT FOLDER COUNT``: prints the intervals as one JSON line.
"""

import json
import sys
import tempfile
from pathlib import Path

from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tuner.ports import MeasurePolicy, Trial
from tuner.task import Task
from workers.config import MeasurerConfig
from workers.ray_measurer import RayMeasurer
from workers.script import load_script

WORKLOAD = GemmWorkload(32, 32, 32, "float32", "float32", "float32")


def main() -> None:
    script, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    config = MeasurerConfig(
        cache_dir=folder / "cache",
        lock_dir=folder / "locks",
        temp_parent=Path(tempfile.gettempdir()),
        builders=1,
        scenario=load_script(script),
    )
    measurer = RayMeasurer(config)
    try:
        (device,) = measurer.devices()
        session = measurer.open(Task(WORKLOAD, device.target), device, MeasurePolicy(), 0)
        print("open", flush=True)
        sys.stdin.readline()  # both drivers begin together
        session.submit([Trial(i, i, 0, Candidate.of("tile", 1, {"mr": i})) for i in range(count)], None)
        done = []
        while session.pending():
            done += session.results(1.0)
        session.close()
        print(json.dumps([m.measurement.interval for m in done]), flush=True)
    finally:
        measurer.close()


if __name__ == "__main__":
    main()
