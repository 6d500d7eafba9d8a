"""TVM's own MetaSchedule on the same GEMM for the same wall time, beside torch.

`compare` runs `tune_tir` in a process of its own, ends it at the deadline, and times the best it had recorded by then
interleaved with torch (`python -m benchmarks.metaschedule --time ...`, a process that loads both).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.paired import paired_ratio

ROUNDS = 21
BATCH_S = 0.02


def compare(workload: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """MetaSchedule's ratio to torch after as many seconds as our search took for the same shape."""
    shape = [int(str(workload[x])) for x in ("m", "n", "k")]
    ours = next(r for r in rows if r["suite"] == "gemm" and [r["m"], r["n"], r["k"]] == shape)
    seconds = float(str(ours["wall_s"]))
    with tempfile.TemporaryDirectory() as folder:
        _run(["--tune", folder, *map(str, shape)], seconds)
        timed = _run(["--time", folder, *map(str, shape)], 600.0)
    found = json.loads(timed.splitlines()[-1]) if timed else {}
    return {"workload": dict(workload), "wall_s": seconds, "ours_ratio": ours["ratio"], **found}


def _run(arguments: list[str], limit_s: float) -> str:
    """What the process printed; ended with its whole group at the limit."""
    environment = {**os.environ, "TVM_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    # TVM's workers spin between calls and would slow torch in the same process (docs/adr/0001).
    environment["TVM_THREAD_POOL_SPIN_COUNT"] = "20000"
    command = [sys.executable, "-m", "benchmarks.metaschedule", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def tune(folder: str, m: int, n: int, k: int) -> None:
    from tvm.s_tir import meta_schedule as ms

    target = _target()
    ms.tune_tir(_matmul(m, n, k), target, folder, 100_000, num_trials_per_iter=16, num_tuning_cores="logical")


def measure(folder: str, m: int, n: int, k: int) -> dict[str, object]:
    import torch
    import tvm
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.JSONDatabase(work_dir=folder)
    records = len(database)
    schedule = ms.tir_integration.compile_tir(database, _matmul(m, n, k), _target()) if records else None
    if schedule is None:
        return {"trials": records, "ratio": None}
    function = tvm.compile(schedule.mod, target=_target())["main"]
    a, b, c, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n), torch.empty(m, n)
    operands = [tvm.runtime.from_dlpack(t) for t in (a, b, c)]
    function(*operands)
    error = float((c.double() - a.double() @ b.double()).abs().max())
    times = _interleaved({"torch": lambda: torch.matmul(a, b, out=out), "metaschedule": lambda: function(*operands)})
    ratio, interval = paired_ratio(times["torch"], times["metaschedule"])
    return {"trials": records, "ratio": ratio, "ratio_ci95": list(interval), "max_abs_err": error}


def _interleaved(calls: Mapping[str, object]) -> dict[str, list[float]]:
    rng = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        order = list(calls)
        rng.shuffle(order)
        for name in order:
            call = calls[name]
            assert callable(call)
            time.sleep(0.01)  # thread pools go idle
            call()
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < BATCH_S:
                call()
                count += 1
            times[name].append((time.perf_counter() - begin) / count)
    return times


def _target() -> object:
    from search_space.lowering.target import llvm_target
    from workers.host import host_target

    return llvm_target(host_target())


def _matmul(m: int, n: int, k: int) -> object:
    from tvm import te

    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return te.create_prim_func([a, b, c])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--tune", type=Path)
    mode.add_argument("--time", type=Path)
    parser.add_argument("shape", type=int, nargs=3)
    options = parser.parse_args()
    if options.tune is not None:
        tune(str(options.tune), *options.shape)
    else:
        print(json.dumps(measure(str(options.time), *options.shape)))


if __name__ == "__main__":
    main()
