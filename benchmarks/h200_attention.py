"""Races prebuilt attention cubins against cuDNN, FlashAttention-2 and FlashAttention-3 on one H200.

python -m benchmarks.h200_attention_emit DIR             CUDA sources (needs TVM, no GPU)
python -m benchmarks.h200_attention compile DIR          cubins (needs nvcc)
python -m benchmarks.h200_attention race DIR --out LOG   checks and times them (needs the GPU, torch and fa3-fwd 0.0.3)
python -m benchmarks.h200_attention report LOG... --folder DIR   docs/results/h200_attention.json and the records
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from benchmarks.h200_attention_candidates import race_entries
from benchmarks.h200_race import PLAN, Race

RECORDS = Path("benchmarks/records/h200_attention.jsonl.gz")


class AttentionRace(Race):
    """Checks the ragged cases first, each candidate once; a wrong one is not timed. `module` runs the child."""

    def __init__(
        self, folder: Path, log: TextIO, seconds: float, indices: list[int], check: bool,
        module: str = "benchmarks.h200_attention",
    ) -> None:  # fmt: skip
        super().__init__(seconds, log, indices, [module, "child", str(folder)], restarts=10)
        self._check = check
        self._wrong: list[str] = []
        self._checked: list[str] = []

    def plan(self) -> Mapping[str, object]:
        skip = [*self._wrong, *(name for _, name in self.skip)]
        return {"indices": self.todo, "skip": skip, "checked": self._checked, "check": self._check}

    def heard(self, message: Mapping[str, Any]) -> None:
        if "check" in message:
            self._checked.append(message["check"])
            if message["wrong"]:
                self._wrong.append(message["check"])
                print("wrong", message["check"], message["wrong"][:3], flush=True)
        if "checked" in message:
            self._check = False


def race(args: argparse.Namespace) -> None:
    from benchmarks.h200_gemm import environment

    begun = time.time()
    indices = list(range(len(race_entries())))
    if args.only:
        indices = [int(x) for x in args.only.split(",")]
    with args.out.open("a") as log:
        head = {"environment": environment(), "date": time.strftime("%Y-%m-%d"), "begun": begun}
        log.write(json.dumps(head) + "\n")
        AttentionRace(args.folder, log, args.seconds, indices, not args.no_check).run()
        log.write(json.dumps({"environment_after": environment(), "wall_s": time.time() - begun}) + "\n")
    print(f"raced in {time.time() - begun:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("compile", "race", "child", "report"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="report: where kernels.json and ptxas's logs are")
    parser.add_argument("--seconds", type=float, default=400.0, help="stop after this many")
    parser.add_argument("--only", default="", help="indices of the shapes to run, by commas")
    parser.add_argument("--no-check", action="store_true", help="leave out the ragged cases")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    args.folder = args.folder or args.paths[0]
    if args.action == "compile":
        from benchmarks.h200_gemm import compile_all

        compile_all(args.folder, args.jobs)
    elif args.action == "child":
        from benchmarks import h200_attention_worker

        h200_attention_worker.run(args.folder, json.loads(os.environ[PLAN]))
    elif args.action == "race":
        race(args)
    else:
        from benchmarks.h200_attention_report import write

        write(args.paths, args.out or Path("docs/results/h200_attention.json"), RECORDS)


if __name__ == "__main__":
    main()
