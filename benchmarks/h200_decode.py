"""Races prebuilt decode attention cubins against cuDNN, FlashAttention-2 and FlashAttention-3 on one H200.

python -m benchmarks.h200_attention_emit DIR --decode   CUDA sources (needs TVM, no GPU)
python -m benchmarks.h200_decode compile DIR            cubins (needs nvcc)
python -m benchmarks.h200_decode race DIR --out LOG     checks and times them (needs the GPU, torch and fa3-fwd 0.0.3)
python -m benchmarks.h200_decode report LOG...          docs/results/h200_decode.json and the records
"""

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.h200_attention import AttentionRace
from benchmarks.h200_decode_candidates import quick_workloads, race_entries
from benchmarks.h200_race import PLAN

RECORDS = Path("benchmarks/records/h200_decode.jsonl.gz")


def wanted(args: argparse.Namespace) -> list[int]:
    """Indices of the shapes to run."""
    if args.quick:
        chosen = {w.key for w in quick_workloads()}
        return [i for i, (w, _) in enumerate(race_entries()) if w.key in chosen]
    return [int(x) for x in args.only.split(",")] if args.only else list(range(len(race_entries())))


def race(args: argparse.Namespace) -> None:
    from benchmarks.h200_gemm import environment

    begun = time.time()
    with args.out.open("a") as log:
        head = {"environment": environment(), "date": time.strftime("%Y-%m-%d"), "begun": begun}
        log.write(json.dumps(head) + "\n")
        check, module = not args.no_check, "benchmarks.h200_decode"
        AttentionRace(args.paths[0], log, args.seconds, wanted(args), check, module).run()
        log.write(json.dumps({"environment_after": environment(), "wall_s": time.time() - begun}) + "\n")
    print(f"raced in {time.time() - begun:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("compile", "race", "child", "report"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0, help="stop after this many")
    parser.add_argument("--only", default="", help="indices of the shapes to run, by commas")
    parser.add_argument("--quick", action="store_true", help="eight shapes of different kinds")
    parser.add_argument("--no-check", action="store_true", help="leave out the ragged cases")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.action == "compile":
        from benchmarks.h200_gemm import compile_all

        compile_all(args.paths[0], args.jobs)
    elif args.action == "child":
        from benchmarks import h200_decode_worker

        h200_decode_worker.run(args.paths[0], json.loads(os.environ[PLAN]))
    elif args.action == "race":
        race(args)
    else:
        from benchmarks.h200_decode_report import write

        write(args.paths, args.out or Path("docs/results/h200_decode.json"), RECORDS)


if __name__ == "__main__":
    main()
