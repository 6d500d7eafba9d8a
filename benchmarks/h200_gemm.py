"""Races prebuilt cubins against cuBLAS over the GEMM shapes of five models, on one H200.

python -m benchmarks.h200_emit DIR                      CUDA sources (needs TVM, no GPU)
python -m benchmarks.h200_gemm compile DIR              cubins (needs nvcc)
python -m benchmarks.h200_gemm race DIR --out LOG       checks and times them (needs the GPU; neither TVM nor nvcc)
python -m benchmarks.h200_report LOG... --out FILE      the result file and the compact records
"""

import argparse
import json
import math
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.h200_race import PLAN, Race
from benchmarks.h200_shapes import is_among
from benchmarks.h200_suites import SUITES


def compile_all(folder: Path, jobs: int, seconds: float = math.inf) -> None:
    """Cubins beside the sources, in the order in which these were emitted; NAME.log holds ptxas's report. None is begun
    after `seconds`."""
    from workers.build.cuda import compile_source
    from workers.build.result import BuildError

    begun = time.time()

    def one(path: Path) -> str:
        target = path.with_suffix(".cubin")
        if target.exists() or time.time() > begun + seconds:
            return ""
        try:
            code, report = compile_source(path.read_text(), "sm_90a", timeout_s=120)
        except BuildError as error:
            path.with_suffix(".error").write_text(str(error))
            return path.stem
        path.with_suffix(".log").write_text(report)
        target.write_bytes(code)
        return ""

    sources = sorted(folder.glob("*.cu"), key=lambda path: (path.stat().st_mtime, path.name))
    with ThreadPoolExecutor(jobs) as pool:
        failed = [name for name in pool.map(one, sources) if name]
    have = len(list(folder.glob("*.cubin")))
    print(f"{have} of {len(sources)} in {time.time() - begun:.1f} s, {len(failed)} failed: {failed}", flush=True)


def wanted(args: argparse.Namespace) -> list[int]:
    """Indices of the entries to run, in order."""
    entries = SUITES[args.suite]()
    indices = [i for i, (w, _) in enumerate(entries) if args.low <= w.m <= args.high]
    if args.shapes:
        indices = [i for i in indices if is_among(entries[i][0], args.shapes)]
    if args.only:
        first, last = (int(x) for x in args.only.split(":"))
        indices = [i for i in indices if first <= i < last]
    return indices[args.offset :: args.step]


def child(args: argparse.Namespace) -> None:
    from benchmarks import h200_worker

    entries = SUITES[args.suite]()
    have = {path.stem for path in args.folder.glob("*.cubin")}
    from benchmarks.h200_keys import kernel_key

    plan = json.loads(os.environ[PLAN])
    skip = {(int(i), str(key)) for i, key in plan["skip"]}
    todo = []
    for index in plan["indices"]:
        workload, candidates = entries[index]
        todo.append((index, workload, [c for c in candidates if kernel_key(workload, c) in have]))
    h200_worker.run(todo, args.folder, skip)


def environment() -> dict[str, Any]:
    import torch

    query = "name,uuid,driver_version,clocks.sm,power.draw,temperature.gpu,clocks_throttle_reasons.active"
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True
    )
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvidia_smi": dict(zip(query.split(","), smi.stdout.strip().split(", "))),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("compile", "race", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0, help="stop after this many")
    parser.add_argument("--only", default="", help="FIRST:LAST entries of the race")
    parser.add_argument("--shapes", type=Path, help="JSON list of [m, n, k]: these shapes of the models alone")
    parser.add_argument("--low", type=int, default=0, help="smallest m")
    parser.add_argument("--high", type=int, default=1 << 30, help="largest m")
    parser.add_argument("--suite", choices=sorted(SUITES), default="gemm")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.action == "compile":
        compile_all(args.folder, args.jobs)
    elif args.action == "child":
        child(args)
    else:
        begun = time.time()
        with args.out.open("a") as log:
            log.write(
                json.dumps({"environment": environment(), "date": time.strftime("%Y-%m-%d"), "begun": begun}) + "\n"
            )
            again = ["benchmarks.h200_gemm", "child", str(args.folder), "--suite", args.suite]
            Race(args.seconds, log, wanted(args), again).run()
            log.write(json.dumps({"environment_after": environment(), "wall_s": time.time() - begun}) + "\n")
        print(f"raced in {time.time() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
