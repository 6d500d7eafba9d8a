"""Script files: what they mean, and what is refused with the field named."""

import json
import math
from pathlib import Path

import pytest

from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from workers.factory import BadScript, parse_measurer
from workers.script import Entry, Script

CANDIDATE = Candidate.of("tile", 1, {"mr": 4})


def test_the_example_of_the_design_is_read(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(
        '{"default": {"latency_s": "hash"}, "trials": [{"latency_s": 0.002},'
        '{"outcome": "BUILD_ERROR", "message": "m"},'
        '{"latency_s": "NaN"}, {"do": "hang"}, {"do": "crash"}, {"do": "allocate"}, {"do": "sleep", "seconds": 5},'
        '{"do": "write_nothing"}, {"do": "write_half"}, {"do": "accumulate"}], "baseline": {"latency_s": 0.001}}'
    )
    script = parse_measurer(f"scripted:{path}")
    assert script is not None
    entries = [script.entry("w", CANDIDATE, i) for i in range(11)]
    assert entries[0].latency(CANDIDATE.key) == 0.002
    assert (entries[1].outcome, entries[1].stage, entries[1].message) == (Outcome.BUILD_ERROR, "build", "m")
    assert math.isnan(entries[2].latency(CANDIDATE.key))
    assert [e.do for e in entries[3:10]] == [
        "hang", "crash", "allocate", "sleep", "write_nothing", "write_half", "accumulate",
    ]  # fmt: skip
    assert entries[6].seconds == 5.0
    assert entries[10] == Entry()
    assert script.baseline("w").latency("vendor") == 0.001
    assert parse_measurer("ray") is None


def test_a_hash_latency_depends_on_the_candidate_alone() -> None:
    entry = Script().entry("w", CANDIDATE, 3)
    assert entry.latency(CANDIDATE.key) == Script().entry("other", CANDIDATE, 9).latency(CANDIDATE.key)
    assert entry.latency(CANDIDATE.key) != entry.latency(CANDIDATE.replace(mr=8).key)
    assert 1e-3 <= entry.latency(CANDIDATE.key) < 2e-3


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"latency_s": "NaN"},
        {"latency_s": "-Infinity"},
        {"latency_s": "Infinity"},
        {"latency_s": 0.0},
        {"do": "hang"},
    ],
)
def test_an_entry_crosses_a_process_as_strict_json(entry: dict[str, object]) -> None:
    text = json.dumps(Entry.from_json(entry).to_json(), allow_nan=False)
    assert json.dumps(Entry.from_json(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("[]", "the document"),
        ("{", "not JSON"),
        ('{"trails": []}', "trails"),
        ('{"trials": {}}', "trials"),
        ('{"trials": [{}, {"latency_s": "fast"}]}', "trials.1.latency_s"),
        ('{"trials": [{"latency_s": true}]}', "trials.0.latency_s"),
        ('{"trials": [{"outcome": "FINE"}]}', "trials.0.outcome"),
        ('{"trials": [{"do": "explode"}]}', "trials.0.do"),
        ('{"trials": [{"do": "sleep", "seconds": -1}]}', "trials.0.seconds"),
        ('{"trials": [{"do": "write_half", "stage": "build"}]}', "trials.0.do"),
        ('{"trials": [{"outcome": "BUILD_ERROR", "stage": "run"}]}', "trials.0.stage"),
        ('{"trials": [{"sleep": 3}]}', "trials.0.sleep"),
        ('{"default": 3}', "default"),
        ('{"baseline": {"latency_s": []}}', "baseline.latency_s"),
    ],
)
def test_a_bad_file_is_refused_with_the_field_named(tmp_path: Path, document: str, field: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(document)
    with pytest.raises(BadScript) as fault:
        parse_measurer(f"scripted:{path}")
    assert field in str(fault.value)
    assert str(path) in str(fault.value)


@pytest.mark.parametrize("spec", ["", "scripted", "scripted:", "recorded:", "replay:x", "ray:1"])
def test_an_unknown_measurer_is_refused(spec: str) -> None:
    with pytest.raises(BadScript, match="must be one of"):
        parse_measurer(spec)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadScript, match="cannot be read"):
        parse_measurer(f"scripted:{tmp_path / 'none.json'}")


def test_recorded_answers_from_the_latest_line_of_each_candidate(tmp_path: Path) -> None:
    workload = GemmWorkload(8, 8, 8, "float32", "float32", "float32")
    other = CANDIDATE.replace(mr=8)
    lines = [
        {"candidate": CANDIDATE.to_json(), "measurement": Measurement(Outcome.OK, (0.5,)).to_json()},
        {"candidate": CANDIDATE.to_json(), "measurement": Measurement(Outcome.OK, (0.2, 0.3, 0.9)).to_json()},
        {"candidate": other.to_json(), "measurement": Measurement(Outcome.BUILD_ERROR, error="boo").to_json()},
        {"baseline": Measurement(Outcome.OK, (0.1,)).to_json()},
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(json.dumps({"workload": workload.to_json(), **line}) for line in lines) + "\n")
    recorded = parse_measurer(f"recorded:{path}")
    assert recorded is not None
    assert recorded.entry(workload.key, CANDIDATE, 0).latency("x") == 0.3
    failed = recorded.entry(workload.key, other, 1)
    assert (failed.outcome, failed.message, failed.stage) == (Outcome.BUILD_ERROR, "boo", "build")
    assert recorded.baseline(workload.key).latency("x") == 0.1
    unknown = recorded.entry(workload.key, CANDIDATE.replace(mr=2), 0)
    assert unknown.outcome is Outcome.RUN_ERROR
    assert "no record of candidate" in unknown.message


def test_a_damaged_record_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"workload": {"op": "gemm"}}\n')
    with pytest.raises(BadScript, match="line 1"):
        parse_measurer(f"recorded:{path}")
