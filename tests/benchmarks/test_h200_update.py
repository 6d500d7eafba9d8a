"""A later sitting's races in the result file: rows replaced, trials and records merged; the portable suite's tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import h200_update
from benchmarks.h200_candidates import H200
from benchmarks.h200_portable import layouts_checked, portable_entries
from benchmarks.h200_shapes import is_among
from benchmarks.records import Recorded
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from search_space.registry import get_sketch
from tuner.outcome import Outcome

W = GemmWorkload.from_json({"m": 512, "n": 1536, "k": 7168, "dtype": "bf16", "trans_b": True, "b_constant": True})


def candidate(block_n: int) -> Candidate:
    return Candidate.of("cuda_gemm_ws", 1, {"block_n": block_n})


def test_what_was_tried_again_replaces_its_record_and_the_rest_stays() -> None:
    old = [Recorded(W, candidate(64), Outcome.OK, (2e-5,), 1e-3), Recorded(W, candidate(96), Outcome.OK, (3e-5,), 1e-3)]
    new = [
        Recorded(W, candidate(96), Outcome.OK, (2.5e-5,), 1e-3),
        Recorded(W, candidate(128), Outcome.OK, (1e-5,), 1e-3),
    ]
    merged = h200_update.merge_records(old, new)
    assert [(r.candidate.knobs["block_n"], r.run_secs) for r in merged] == [
        (64, (2e-5,)),
        (96, (2.5e-5,)),
        (128, (1e-5,)),
    ]


def test_a_row_is_replaced_whether_better_or_worse_and_its_cost_adds_up() -> None:
    def row(m: int, ratio: float, **more: Any) -> dict[str, Any]:
        return {"suite": "models", "m": m, "n": 8, "k": 8, "ratio": ratio, "trials": 10, "wall_s": 1.5, **more}

    rows = h200_update.replace_rows(
        [row(1, 1.1), row(2, 0.9)], [row(2, 0.8, sitting=3, trials=25), row(3, 1.0, sitting=3)]
    )
    assert [(r["m"], r["ratio"], r["trials"], r["wall_s"]) for r in rows] == [
        (1, 1.1, 10, 1.5),
        (2, 0.8, 25, 3.0),
        (3, 1.0, 10, 1.5),
    ]
    assert [r.get("sitting") for r in rows] == [None, 3, 3]


def test_a_later_sitting_is_read_from_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [candidate(n) for n in (64, 96)]
    monkeypatch.setattr(h200_update, "race_entries", lambda: [(W, chosen)])
    monkeypatch.setattr(h200_update, "suite_of", lambda _index: "models")
    best = {"candidate": chosen[1].key, "latency_s": 1.9e-5, "ratio": [1.05, 1.04, 1.06], "max_rel_err": 1e-3}
    lines = [
        {"environment": {"device": "x", "nvidia_smi": {"driver_version": "1"}}, "date": "2026-12-02"},
        {"t": 10.0, "i": 0, "shape": 0},
        {"t": 10.5, "i": 0, "tried": chosen[1].key, "outcome": "OK", "run_secs": [1.9e-5], "max_rel_err": 1e-3},
        {"t": 11.0, "i": 0, "final": {"stream": best}, "torch_s": 2e-5, "rounds": 12, "cold": True, "times": {}},
        {"t": 11.0, "i": 0, "done": 0},
    ]
    log = tmp_path / "later.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads(h200_update.RESULT.read_text())
    before = {h200_update.shape_of(r): r for r in result["rows"]}
    old = [Recorded(W, chosen[0], Outcome.OK, (2.3e-5,), 1e-3)]
    updated, records = h200_update.update(result, old, [log])
    assert len(records) == updated["summary"]["candidates_tried"] == 2
    after = {h200_update.shape_of(r): r for r in updated["rows"]}
    changed = [key for key in after if after[key] != before[key]]
    assert changed == [("models", 512, 1536, 7168)]
    row = after[changed[0]]
    assert (row["ratio"], row["trials"], row["sitting"]) == (1.05, 2, len(updated["environment"]["sittings"]))
    assert updated["date"] == "2026-12-02"


def test_shapes_are_chosen_by_a_list(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text("[[512, 1536, 7168]]")
    assert is_among(W, path)
    other = GemmWorkload.from_json({"m": 512, "n": 1536, "k": 7168, "dtype": "bf16", "trans_b": True})
    assert not is_among(other, path), "only layers of the models have constant weights"


def test_the_portable_suite_holds_legal_candidates_of_both_sketches_in_every_layout() -> None:
    seen: dict[str, set[tuple[bool, bool]]] = {}
    for w, chosen in portable_entries():
        assert chosen
        for c in chosen:
            assert get_sketch(c.sketch).violated(w, H200, c.knobs) is None
            seen.setdefault(c.sketch, set()).add((w.trans_a, w.trans_b))
    assert {name: len(layouts) for name, layouts in seen.items()} == {"cuda_gemm_mma": 4, "cuda_gemm_simt": 4}
    assert layouts_checked() < len(portable_entries())
