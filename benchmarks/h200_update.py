"""Puts a later sitting's races into the result file and the records: shapes raced again replace their rows.

    python -m benchmarks.h200_update LOG... [--result docs/results/h200_gemm.json]
        [--records benchmarks/records/h200_gemm.jsonl.gz]

The later sitting races some shapes against the vendor again, with more candidates, the old winner among them; its row
replaces the old one whether it is better or worse.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.h200_candidates import race_entries
from benchmarks.h200_portable import layouts_checked, portable_entries
from benchmarks.h200_report import PROTOCOL, Row, Shapes, commit, environment_of, make_row, suite_of, summarise
from benchmarks.records import Recorded, read_records, write_records
from benchmarks.result_file import ROOT
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tuner.outcome import Outcome

RESULT = ROOT / "docs" / "results" / "h200_gemm.json"
RECORDS = ROOT / "benchmarks" / "records" / "h200_gemm.jsonl.gz"
_LATER = (
    " Rows with a field sitting were raced again in that later one of environment.sittings, with more candidates "
    "(twelve finalists instead of seven), the earlier winner among them, and replace the earlier rows whether better "
    "or worse; their trials and wall_s count both."
)


def merge_records(old: Sequence[Recorded], new: Sequence[Recorded]) -> list[Recorded]:
    """Old ones first, in their order; what was tried again is replaced."""
    merged = {(r.workload.key, r.candidate.key): r for r in old}
    merged.update({(r.workload.key, r.candidate.key): r for r in new})
    return list(merged.values())


def shape_of(row: Row) -> tuple[str, int, int, int]:
    return row["suite"], row["m"], row["n"], row["k"]


def replace_rows(rows: list[Row], fresh: Sequence[Row]) -> list[Row]:
    """`rows` with those of the same suite and shape replaced; trials and wall_s added up."""
    by = {shape_of(r): r for r in fresh}
    out = []
    for row in rows:
        later = by.pop(shape_of(row), None)
        if later is None:
            out.append(row)
            continue
        spent = {"trials": later["trials"], "wall_s": round(row["wall_s"] + later["wall_s"], 2)}
        out.append({**later, **spent})
    return out + list(by.values())


def fresh_rows(shapes: Shapes, sitting: int) -> tuple[list[Row], list[Row], list[Recorded]]:
    """(stream rows, dependent rows, records) of the shapes that the logs hold."""
    stream: list[Row] = []
    dependent: list[Row] = []
    records: list[Recorded] = []
    for index, (w, chosen) in enumerate(race_entries()):
        if index not in shapes.tried or suite_of(index) == "layouts":
            continue
        by = {c.key: c for c in chosen}
        for launch, target in (("stream", stream), ("dependent", dependent)):
            if (row := make_row(suite_of(index), w, shapes, index, by, launch)) is not None:
                target.append({**row, "sitting": sitting})
        for key, line in shapes.tried[index].items():
            if key in by:
                times = tuple(line.get("run_secs", ()))
                records.append(Recorded(w, by[key], Outcome(line["outcome"]), times, line.get("max_rel_err")))
    return stream, dependent, records


def update(result: Row, old: Sequence[Recorded], logs: Sequence[Path]) -> tuple[Row, list[Recorded]]:
    shapes = Shapes()
    for log in logs:
        shapes.read(log)
    sittings = [*result["environment"]["sittings"], *shapes.environment]
    stream, dependent, new = fresh_rows(shapes, len(sittings))
    records = merge_records(old, new)
    tried: dict[str, int] = {}
    for r in records:
        tried[r.workload.key] = tried.get(r.workload.key, 0) + 1
    for row in (*stream, *dependent):
        row["trials"] = tried[_workload(row).key]
    rows = replace_rows(result["rows"], stream)
    tables = dict(result["tables"])
    tables["dependent_launch"] = replace_rows(tables["dependent_launch"], dependent)
    tables["lost_children"] = tables["lost_children"] + shapes.lost
    tables["wrong_after_timing"] = tables["wrong_after_timing"] + shapes.wrong_after
    summary = {
        **summarise(rows, tables["dependent_launch"], result["summary"]["shapes_expected"]),
        "candidates_tried": len(records),
        "candidates_right": sum(r.outcome is Outcome.OK for r in records),
        "candidates_wrong": sum(r.outcome is Outcome.WRONG_ANSWER for r in records),
    }
    command = result["command"].split("; python -m benchmarks.h200_update")[0]
    return {
        **result,
        "command": command + "; python -m benchmarks.h200_update LATER_LOG (shapes by --shapes FILE)",
        "date": shapes.date,
        "commit": commit(),
        "environment": environment_of(sittings),
        "protocol": PROTOCOL + _LATER,
        "rows": rows,
        "tables": tables,
        "summary": summary,
    }, records


def keep_known(shapes: Shapes, index: int, by: Mapping[str, Candidate]) -> bool:
    """Chooses the shape's winner anew among candidates in `by`, as the race did: others are no longer legal (their
    registers spilled). False when none of them was timed."""
    from workers.cuda_bench import paired_ratio

    line = shapes.finals.get(index)
    known = [key for key in line["times"] if key in by] if line is not None else []
    if line is None or not known:
        return False
    times, cut = line["times"], line["rounds"] // 3
    best = min(known, key=lambda key: statistics.median(times[key][:cut]))
    ratio = paired_ratio(times["torch"][cut:], times[best][cut:], random.Random(index))
    error = shapes.tried[index][best]["max_rel_err"]
    won = {"candidate": best, "latency_s": statistics.median(times[best][cut:]), "ratio": ratio, "max_rel_err": error}
    shapes.finals[index] = {**line, "final": {"stream": won}}
    return True


def add_portable(result: Row, logs: Sequence[Path]) -> Row:
    """`result` with the races of the sketches for older cards as tables, without a share of a roof."""
    shapes = Shapes()
    for log in logs:
        shapes.read(log)
    timed: list[Row] = []
    checked = {"right": 0, "other": 0}
    for index, (w, chosen) in enumerate(portable_entries()):
        outcomes = [line["outcome"] for line in shapes.tried.get(index, {}).values()]
        checked["right"] += outcomes.count(Outcome.OK.value)
        checked["other"] += len(outcomes) - outcomes.count(Outcome.OK.value)
        by = {c.key: c for c in chosen}
        if index < layouts_checked() or not keep_known(shapes, index, by):
            continue
        if (row := make_row("portable", w, shapes, index, by, "stream")) is not None:
            timed.append({k: v for k, v in row.items() if k != "roof_fraction"})
    sittings = [*result["environment"]["sittings"], *shapes.environment]
    tables = {
        **result["tables"],
        "sm_80_sketch_on_this_card": [r for r in timed if r["dtype"] != "float32"],
        "float32_sketch": [r for r in timed if r["dtype"] == "float32"],
        "portable_candidates": checked,
    }
    return {**result, "environment": {**result["environment"], "sittings": sittings}, "tables": tables}


def _workload(row: Row) -> GemmWorkload:
    names = ("m", "n", "k", "dtype", "batch", "trans_a", "trans_b", "b_constant", "epilogue")
    return GemmWorkload.from_json({name: row[name] for name in names if name in row})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--portable", action="store_true", help="the logs are of the race --suite portable")
    args = parser.parse_args()
    if args.portable:
        added = add_portable(json.loads(args.result.read_text()), args.logs)
        args.result.write_text(json.dumps(added, indent=1) + "\n")
        return
    result, records = update(json.loads(args.result.read_text()), list(read_records(args.records)), args.logs)
    args.result.write_text(json.dumps(result, indent=1) + "\n")
    write_records(args.records, records, {"sittings": result["environment"]["sittings"]})
    json.dump(result["summary"], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
