"""Two `tilewright tune` at once on one database and one CPU: measured one at a time, nothing lost (cases O15, O25)."""

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

SHAPE = ["gemm", "--m", "64", "--n", "96", "--k", "64"]
TRIALS = 10


def start_tune(folder: Path, seed: int) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TILEWRIGHT_DATA": str(folder), "TILEWRIGHT_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "tilewright", "tune", *SHAPE, "--trials", str(TRIALS), "--seed", str(seed)]
    return subprocess.Popen(
        [*command, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def intervals(database: Path) -> list[tuple[float, float]]:
    """[start, end] on the device of every measurement, by start."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select measurement from measurements").fetchall()
    found = [json.loads(text)["interval"] for (text,) in rows]
    return sorted((float(start), float(end)) for start, end in found)


@pytest.mark.slow
def test_two_tunes_take_turns_on_the_device_and_the_better_one_is_served(tmp_path: Path) -> None:
    tunes = [start_tune(tmp_path, seed) for seed in (1, 2)]
    jobs = []
    for tune in tunes:
        out, err = tune.communicate(timeout=280)
        assert tune.returncode == 0, err
        jobs.append(json.loads(out))
    assert [j["trials"]["done"] for j in jobs] == [TRIALS, TRIALS]
    measured = intervals(tmp_path / "tilewright.db")
    assert len(measured) == 2 * TRIALS
    assert all(start < end for start, end in measured)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(measured))
    best = subprocess.run(
        [sys.executable, "-m", "tilewright", "best", *SHAPE, "--json", "--db", str(tmp_path / "tilewright.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    winners = {task["schedule_id"] for job in jobs for task in job["tasks"]}
    assert json.loads(best.stdout)["schedule"]["id"] in winners
