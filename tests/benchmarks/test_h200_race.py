"""The prebuilt race without a GPU: candidates, records, and the report from a log."""

import json
from pathlib import Path

import pytest

from benchmarks.h200_candidates import H200, candidates
from benchmarks.h200_keys import kernel_key
from benchmarks.h200_report import Shapes, geometric_mean, make_row
from benchmarks.h200_shapes import model_workloads, unaligned_workloads
from benchmarks.records import Recorded, read_records, write_records
from search_space.gemm import GemmWorkload
from search_space.registry import get_sketch
from tuner.outcome import Outcome


def test_the_shapes_are_those_of_the_five_models_once_each() -> None:
    shapes = model_workloads()
    keys = {(w.m, w.n, w.k) for w in shapes}
    assert len(keys) == len(shapes) == 229
    assert (16, 6144, 4096) in keys
    assert all(w.trans_b and w.b_constant and w.dtype_a == "bfloat16" for w in shapes)


def test_every_candidate_is_legal_and_few_kernels_serve_all_shapes() -> None:
    kernels: set[str] = set()
    for w in [*model_workloads()[::9], *unaligned_workloads()]:
        chosen = candidates(w)
        assert len(chosen) >= 5
        for c in chosen:
            assert get_sketch(c.sketch).violated(w, H200, c.knobs) is None
            kernels.add(kernel_key(w, c))
    assert len(kernels) < 800


def test_a_kernel_does_not_depend_on_the_extents_but_on_the_tile() -> None:
    small, large = (GemmWorkload.from_json({"m": m, "n": 4096, "k": 4096, "dtype": "bf16"}) for m in (1000, 8000))
    c = candidates(small)[0]
    assert kernel_key(small, c) == kernel_key(large, c)
    assert kernel_key(small, c) != kernel_key(small, c.replace(block_n=64))


def test_records_survive_being_written_and_read(tmp_path: Path) -> None:
    w = unaligned_workloads()[0]
    first, second = candidates(w)[:2]
    records = [
        Recorded(w, first, Outcome.OK, (1.5e-5, 1.25e-5), 1.66e-3),
        Recorded(w, second, Outcome.WRONG_ANSWER),
    ]
    path = tmp_path / "records.jsonl.gz"
    write_records(path, records, {"device": "none"})
    back = list(read_records(path))
    assert [r.candidate for r in back] == [first, second]
    assert back[0].run_secs == pytest.approx((1.5e-5, 1.25e-5))
    assert (back[1].outcome, back[1].run_secs, back[0].max_rel_err) == (Outcome.WRONG_ANSWER, (), 1.66e-3)
    data = path.read_bytes()
    write_records(path, records, {"device": "none"})
    assert path.read_bytes() == data


def test_a_row_says_the_paired_ratio_and_the_share_of_the_roof(tmp_path: Path) -> None:
    w = model_workloads()[40]
    c = candidates(w)[0]
    best = {"candidate": c.key, "latency_s": 2e-5, "ratio": [1.1, 1.05, 1.2], "max_rel_err": 1e-3}
    lines = [
        {"environment": {"device": "x"}, "date": "2026-12-01"},
        {"t": 10.0, "i": 3, "shape": 3},
        {"t": 11.0, "i": 3, "tried": c.key, "outcome": "OK", "run_secs": [2e-5]},
        {"t": 12.0, "i": 3, "final": {"stream": best}, "torch_s": 2.2e-5, "rounds": 12, "cold": True, "times": {}},
        {"t": 12.5, "i": 3, "done": 3},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shapes = Shapes()
    shapes.read(log)
    row = make_row("models", w, shapes, 3, {c.key: c}, "stream")
    assert row is not None
    assert (row["ratio"], row["ratio_ci95"], row["trials"], row["wall_s"]) == (1.1, [1.05, 1.2], 1, 2.5)
    assert row["roof_fraction"] == pytest.approx(max(w.min_bytes() / 4.3e12, w.flops() / 7.9e14) / 2e-5, rel=1e-3)
    assert make_row("models", w, shapes, 3, {c.key: c}, "dependent") is None


def test_the_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


RECORDS = Path(__file__).parents[2] / "benchmarks" / "records" / "h200_gemm.jsonl.gz"
RESULT = Path(__file__).parents[2] / "docs" / "results" / "h200_gemm.json"


def test_the_recorded_race_is_readable_and_agrees_with_the_result_file() -> None:
    records = list(read_records(RECORDS))
    result = json.loads(RESULT.read_text())
    assert len(records) == result["summary"]["candidates_tried"]
    assert all(r.outcome is Outcome.OK and r.run_secs for r in records)
    best: dict[str, float] = {}
    for r in records:
        if not r.candidate.knobs.get("dependent"):
            best[r.workload.key] = min(best.get(r.workload.key, 1.0), min(r.run_secs))
    shown = {"suite", "latency_s", "knobs"}
    for row in result["rows"]:
        assert shown <= set(row)
        fields = {k: row[k] for k in ("m", "n", "k", "dtype", "batch", "trans_a", "trans_b", "b_constant") if k in row}
        w = GemmWorkload.from_json(fields)
        # A probe is three replays on a cool card, the final twenty on a warm one.
        assert best[w.key] * 0.85 <= row["latency_s"] <= best[w.key] * 1.7
        assert get_sketch(row["sketch"]).violated(w, H200, row["knobs"]) is None


def test_the_summary_follows_from_the_rows() -> None:
    result = json.loads(RESULT.read_text())
    models = [r["ratio"] for r in result["rows"] if r["suite"] == "models"]
    assert len(models) == result["summary"]["shapes_expected"] == 229
    assert result["summary"]["geomean_all"] == pytest.approx(geometric_mean(models), abs=1e-4)
    assert result["summary"]["worst"] == min(models)
