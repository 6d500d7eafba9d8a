"""Writes the CUDA source of every kernel of the second GEMM race: `python -m benchmarks.h200_more_emit DIR [MOST]`.

Needs TVM and no GPU. DIR/KEY.json says each kernel's parameter order; the machine with the GPU needs no TVM.
"""

import importlib
import json
import sys
from pathlib import Path

from benchmarks.h200_candidates import H200
from benchmarks.h200_more_candidates import needed


def emit(folder: Path, most: int) -> None:
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    for i, (key, (workload, candidate)) in enumerate(list(needed().items())[:most]):
        path, note = folder / f"{key}.cu", folder / f"{key}.json"
        if path.exists() and note.exists():
            continue
        lowered = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower").lower(
            workload, H200, candidate.knobs
        )
        source = cuda_source(lowered, H200)
        launch = with_parameters(lowered.launch, source)
        orders = {k["symbol"]: k["parameters"] for k in launch["kernels"]}
        note.write_text(json.dumps({"parameters": orders, "candidate": candidate.to_json()}))
        path.write_text(source)
        print(f"{i + 1} {key} {candidate.sketch}", flush=True)


if __name__ == "__main__":
    emit(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 30)
