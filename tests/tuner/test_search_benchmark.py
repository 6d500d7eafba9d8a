import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import TARGET, failed, gemm, ok, record

from benchmarks.search import gaps, main
from search_space.candidate import Candidate
from search_space.registry import generate_sketches
from tuner.presets import preset
from tuner.records_file import to_line
from tuner.resume import resume
from tuner.search.propose import at_random
from tuner.task import Task

CANDIDATES = [Candidate.of("s", 1, {"x": x}) for x in range(4)]


def test_gaps_are_the_best_so_far_over_the_best_recorded():
    ends = [failed(), ok(3.0), ok(4.0), ok(2.0)]
    records = {c: record(c, m) for c, m in zip(CANDIDATES, ends, strict=True)}
    assert gaps(CANDIDATES, records, 2.0) == [None, 1.5, 1.5, 1.0]
    assert gaps(CANDIDATES[:1], records, 2.0) == [None]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two shapes, 120 points each of the real CPU sketches, with a time that one knob and the sketch decide."""
    lines = []
    for shape in (gemm(64, 64, 64), gemm(128, 64, 64)):
        task = Task(shape, TARGET)
        state = resume(task, generate_sketches(shape, TARGET), [], [], preset("quick"), sketches={})
        for i, c in enumerate(at_random(state, 120, np.random.default_rng(1))):
            spread = sum(v for _, v in c.choices if isinstance(v, int))
            seconds = 1e-4 * (1.0 + spread % 37 / 10.0)
            lines.append(to_line(record(c, failed() if i % 10 == 9 else ok(seconds), i, task)))
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_benchmark_replays_a_file_and_writes_its_result(records: Path, tmp_path: Path):
    main(["--records", str(records), "--seeds", "1", "--trials", "16", "--preset", "quick", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "search.json").read_text())
    methods = {"model", "model_with_transfer", "regularised_evolution", "random"}
    assert {(row["m"], row["method"]) for row in result["rows"]} == {(m, x) for m in (64, 128) for x in methods}
    for row in result["rows"]:
        assert row["recorded"] == 120
        assert row["gap@8"] >= row["gap@16"] >= 1.0
        assert "gap@32" not in row
    assert set(result["summary"]) == methods
    assert result["environment"]["recorded_on"] == ["Test CPU (test-arch, 2 cores)"]
