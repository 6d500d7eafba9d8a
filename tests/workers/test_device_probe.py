"""What is kept about a host: read back, made again when damaged, and never lower for having been measured busy."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tuner.ports import MeasurePolicy
from tuner.roofs import Roofs
from workers import device_probe
from workers.device_probe import DeviceProbe
from workers.host import host_identity, host_target
from workers.script import Script

ROOFS = Roofs({"float32": 100.0}, 10.0, 20.0, 1 << 20)


class Answers:
    """Stands where the probing child does (its own answers are tested in test_host and test_roofs)."""

    def __init__(self, roofs: Roofs) -> None:
        self.roofs = roofs
        self.asked: list[str] = []
        self.held = False

    def __call__(self, probe: DeviceProbe, request: Mapping[str, object], holding: object) -> Mapping[str, object]:
        self.asked.append(str(request["do"]))
        if request["do"] == "roofs":
            return {"roofs": self.roofs.to_json()}
        target = host_target()
        return {"target": target.to_json(), "identity": host_identity(MeasurePolicy()).to_json()}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers(ROOFS)
    monkeypatch.setattr(DeviceProbe, "_ask", lambda self, request, holding: answers(self, request, holding))
    return answers


def probe(folder: Path, cores: int = 0, scenario: Script | None = None) -> DeviceProbe:
    return DeviceProbe("cpu:here", cores, scenario, folder, {})


def test_the_host_is_asked_once(tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probe.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    first = probe(tmp_path).info(contextlib.nullcontext)
    second = probe(tmp_path).info(contextlib.nullcontext)
    assert first == second
    assert answers.asked == ["identify", "roofs"]
    assert first.roofs == ROOFS
    assert first.identity.policy == "v1/warm"


def test_roofs_of_a_busy_machine_are_measured_again_and_the_higher_counts(
    tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_probe.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    probe(tmp_path).info(contextlib.nullcontext)
    answers.roofs = Roofs({"float32": 150.0}, 5.0, 20.0, 1 << 20)
    monkeypatch.setattr(device_probe.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    again = probe(tmp_path).info(contextlib.nullcontext)
    assert again.roofs == Roofs({"float32": 150.0}, 10.0, 20.0, 1 << 20)
    probe(tmp_path).info(contextlib.nullcontext)
    assert answers.asked == ["identify", "roofs", "roofs"]


def test_a_damaged_file_is_made_again(tmp_path: Path, answers: Answers) -> None:
    before = probe(tmp_path).info(contextlib.nullcontext)
    for path in tmp_path.glob("*.json"):
        path.write_text(path.read_text()[:20])
    assert probe(tmp_path).info(contextlib.nullcontext) == before
    assert all(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))


def test_a_worker_of_fewer_cores_is_another_target(tmp_path: Path, answers: Answers) -> None:
    info = probe(tmp_path, cores=1).info(contextlib.nullcontext)
    assert info.target.cores == info.identity.cores == 1


def test_what_a_script_says_is_never_taken_for_a_measurement(tmp_path: Path, answers: Answers) -> None:
    info = probe(tmp_path, scenario=Script()).info(contextlib.nullcontext)
    assert info.identity.policy == "scripted/warm"
    assert info.roofs is None
    assert answers.asked == ["identify"]
