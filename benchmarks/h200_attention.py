"""Races prebuilt attention cubins against cuDNN, FlashAttention-2 and FlashAttention-3 on one H200.

python -m benchmarks.h200_attention_emit DIR             CUDA sources (needs TVM, no GPU)
python -m benchmarks.h200_attention compile DIR          cubins (needs nvcc)
python -m benchmarks.h200_attention race DIR --out LOG   checks and times them (needs the GPU, torch and fa3-fwd 0.0.3)
python -m benchmarks.h200_attention report LOG... --folder DIR   docs/results/h200_attention.json and the records
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.h200_attention_candidates import race_entries

_FIRST_TIMEOUT_S = 90.0  # until the first sign of life: imports
_STEP_TIMEOUT_S = 20.0
_RESTARTS = 10
RECORDS = Path("benchmarks/records/h200_attention.jsonl.gz")


class Race:
    """The parent: starts children, watches for signs of life, writes every line to the log."""

    def __init__(
        self, folder: Path, log: TextIO, seconds: float, indices: list[int], check: bool,
        module: str = "benchmarks.h200_attention",
    ) -> None:  # fmt: skip
        self.folder, self.log, self.todo, self.check, self.module = folder, log, indices, check, module
        self.skip: list[str] = []
        self.checked: list[str] = []
        self.deadline = time.time() + seconds
        self.started, self.shape = "", -1

    def run(self) -> None:
        for _ in range(_RESTARTS):
            ended = self._child()
            if ended in ("done", "time"):
                break
            self._write({"ended": ended, "shape": self.shape, "start": self.started})
            print("child", ended, "at", self.shape, self.started, flush=True)
            if self.started in ("", "final") and self.shape in self.todo:
                self.todo.remove(self.shape)
            else:
                self.skip.append(self.started)
        self._write({"left": self.todo})
        print(f"{len(self.todo)} shapes left", flush=True)

    def _child(self) -> str:
        plan = json.dumps({"indices": self.todo, "skip": self.skip, "checked": self.checked, "check": self.check})
        command = [sys.executable, "-u", "-m", self.module, "child", str(self.folder)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "H200_PLAN": plan}
        )
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        errors: list[str] = []
        threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True).start()
        self.started, patience = "", _FIRST_TIMEOUT_S
        while True:
            try:
                line = lines.get(timeout=min(patience, max(0.1, self.deadline - time.time())))
            except queue.Empty:
                process.kill()
                return "time" if time.time() >= self.deadline else "hang"
            if line is None:
                code = process.wait()
                if code:
                    self._write({"stderr": "".join(errors)[-1500:]})
                    print("".join(errors)[-1500:], flush=True)
                return "done" if code == 0 else f"exit {code}"
            patience = _STEP_TIMEOUT_S
            self._take(line)

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        self.shape = message.get("shape", self.shape)
        self.started = message.get("start", "" if "shape" in message else self.started)
        if "done" in message:
            self.todo.remove(message["done"])
        if "check" in message:
            self.checked.append(message["check"])
            if message["wrong"]:
                self.skip.append(message["check"])
                print("wrong", message["check"], message["wrong"][:3], flush=True)
        if "checked" in message:
            self.check = False
        if "start" not in message:
            self._write({"i": self.shape, **message})

    def _write(self, message: dict[str, Any]) -> None:
        self.log.write(json.dumps({"t": round(time.time(), 2), **message}) + "\n")
        self.log.flush()


def _pump(stream: TextIO, lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def race(args: argparse.Namespace) -> None:
    from benchmarks.h200_gemm import environment

    begun = time.time()
    indices = list(range(len(race_entries())))
    if args.only:
        indices = [int(x) for x in args.only.split(",")]
    with args.out.open("a") as log:
        head = {"environment": environment(), "date": time.strftime("%Y-%m-%d"), "begun": begun}
        log.write(json.dumps(head) + "\n")
        Race(args.folder, log, args.seconds, indices, not args.no_check).run()
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

        h200_attention_worker.run(args.folder, json.loads(os.environ["H200_PLAN"]))
    elif args.action == "race":
        race(args)
    else:
        from benchmarks.h200_attention_report import write

        write(args.paths, args.out or Path("docs/results/h200_attention.json"), RECORDS)


if __name__ == "__main__":
    main()
