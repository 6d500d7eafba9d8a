"""Writes the CUDA source of every kernel that the H200 race needs.

python -m benchmarks.h200_emit DIR [--shapes FILE] [--suite portable]

Needs TVM and no GPU. DIR/kernels.json says, by kernel key, the source file and each kernel's parameter order; the
machine with the GPU needs neither TVM nor this module.
"""

import argparse
import importlib
import json
from pathlib import Path

from benchmarks.h200_candidates import H200
from benchmarks.h200_keys import kernel_key
from benchmarks.h200_shapes import is_among
from benchmarks.h200_suites import SUITES
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload


def needed(shapes: Path | None = None, suite: str = "gemm") -> dict[str, tuple[GemmWorkload, Candidate]]:
    """kernel key -> one (workload, candidate) that has it. First what is first on each shape's list, then what is
    second, so that a run that is cut short leaves every shape something."""
    out: dict[str, tuple[GemmWorkload, Candidate]] = {}
    entries = [(w, chosen) for w, chosen in SUITES[suite]() if shapes is None or is_among(w, shapes)]
    for rank in range(max(len(chosen) for _, chosen in entries)):
        for workload, chosen in reversed(entries):
            if rank < len(chosen):
                out.setdefault(kernel_key(workload, chosen[rank]), (workload, chosen[rank]))
    return out


def emit(folder: Path, shapes: Path | None = None, suite: str = "gemm") -> None:
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, object]] = {}
    todo = needed(shapes, suite)
    for i, (key, (workload, candidate)) in enumerate(todo.items()):
        path = folder / f"{key}.cu"
        note = folder / f"{key}.json"
        if not (path.exists() and note.exists()):
            lower = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower").lower
            lowered = lower(workload, H200, candidate.knobs)
            source = cuda_source(lowered, H200)
            launch = with_parameters(lowered.launch, source)
            path.write_text(source)
            orders = {k["symbol"]: k["parameters"] for k in launch["kernels"]}
            note.write_text(json.dumps({"parameters": orders, "candidate": candidate.to_json()}))
            print(f"{i + 1}/{len(todo)} {key} {candidate.sketch}", flush=True)
        index[key] = json.loads(note.read_text())
    (folder / "kernels.json").write_text(json.dumps(index))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", type=Path, help="JSON list of [m, n, k]: the kernels of these shapes alone")
    parser.add_argument("--suite", choices=sorted(SUITES), default="gemm")
    args = parser.parse_args()
    emit(args.folder, args.shapes, args.suite)
