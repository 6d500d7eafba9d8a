"""Races prebuilt GEMV, float8 and grouped GEMM cubins against torch on one H200.

python -m benchmarks.h200_more_emit DIR                 CUDA sources (needs TVM, no GPU)
python -m benchmarks.h200_more compile DIR              cubins (needs nvcc)
python -m benchmarks.h200_more race DIR --out LOG       checks and times them (needs the GPU, neither TVM nor nvcc)
python -m benchmarks.h200_more_report LOG               the result files
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import TextIO

from benchmarks.h200_gemm import compile_all, environment
from benchmarks.h200_more_candidates import race_entries
from benchmarks.h200_race import Race


def child(args: argparse.Namespace) -> None:
    from benchmarks import h200_more_worker

    plan = json.loads(os.environ["H200_PLAN"])
    entries = race_entries()
    skip = {(int(i), str(key)) for i, key in plan["skip"]}
    h200_more_worker.run(((i, *entries[i]) for i in plan["indices"]), args.folder, skip, args.rounds)


def race(args: argparse.Namespace, log: TextIO) -> None:
    """The checks, then one shape of each suite after another, so that a short time limit leaves some of every suite."""
    suites = [suite for suite, _, _ in race_entries()]
    rank = {i: suites[:i].count(suite) if suite != "checks" else -1 for i, suite in enumerate(suites)}
    wanted = sorted((i for i in rank if suites[i] in args.suites.split(",")), key=lambda i: (rank[i], i))
    if args.after is not None:
        lines = map(json.loads, args.after.read_text().splitlines())
        done = {line["done"] for line in lines if "done" in line}
        wanted = [i for i in wanted if i not in done]
    command = ["benchmarks.h200_more", "child", str(args.folder), "--rounds", str(args.rounds)]
    Race(args.seconds, log, wanted[args.offset :: args.step], command).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("compile", "race", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0, help="stop after this many")
    parser.add_argument("--suites", default="checks,gemv,fp8_tensor,fp8_block,grouped")
    parser.add_argument("--after", type=Path, help="log of an earlier sitting: what it finished is left out")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30, help="most rounds of a final")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.action == "compile":
        compile_all(args.folder, args.jobs, args.seconds)
    elif args.action == "child":
        child(args)
    else:
        begun = time.time()
        with args.out.open("a") as log:
            log.write(json.dumps({"environment": environment(), "date": time.strftime("%Y-%m-%d")}) + "\n")
            race(args, log)
            log.write(json.dumps({"environment_after": environment(), "wall_s": time.time() - begun}) + "\n")
        print(f"raced in {time.time() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
