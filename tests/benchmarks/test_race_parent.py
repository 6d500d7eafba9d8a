"""The parent of a GPU race: children that die or fall silent cost what they were at, and nothing else."""

import io
import json
from pathlib import Path

import pytest

from benchmarks.h200_race import Race

# Shape 1's candidate "bad" ends the process, shape 2 hangs before it names a candidate, the rest is fine.
CHILD = """
import json, os, sys, time
plan = json.loads(os.environ["H200_PLAN"])
say = lambda **m: print(json.dumps(m), flush=True)
print("a library's chatter", flush=True)
for shape in plan["indices"]:
    say(shape=shape)
    if shape == 2:
        time.sleep(60)
    for name in ("good", "bad"):
        if [shape, name] in plan["skip"]:
            continue
        say(start=name)
        if shape == 1 and name == "bad":
            sys.exit("an illegal address")
        say(timed=name)
    say(done=shape)
"""


def child(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A module that a race starts."""
    (folder / "raced_child.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return ["raced_child"]


def test_a_race_survives_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    module = child(tmp_path, CHILD, monkeypatch)
    race = Race(100.0, log, [0, 1, 2, 3], module, first_s=60.0, step_s=3.0)
    race.run()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert race.todo == []
    assert race.skip == [(1, "bad")]
    assert [m["ended"] for m in lines if "ended" in m] == ["exit 1", "hang"]
    assert any("an illegal address" in m.get("stderr", "") for m in lines)
    assert [(m["i"], m["timed"]) for m in lines if "timed" in m] == [
        (0, "good"),
        (0, "bad"),
        (1, "good"),
        (1, "good"),
        (3, "good"),
        (3, "bad"),
    ]
    assert lines[-1]["left"] == []


def test_a_race_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    race = Race(1.0, log, [5], child(tmp_path, "import time; time.sleep(60)", monkeypatch))
    race.run()
    assert race.todo == [5]
    assert json.loads(log.getvalue().splitlines()[-1])["left"] == [5]
