"""Writes the CUDA source of every kernel of the H200 attention race: `python -m benchmarks.h200_attention_emit DIR`.

Needs TVM and no GPU. DIR/kernels.json gives the order of each kernel's parameters, so that the race needs no TVM.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.h200_attention_candidates import kernels
from benchmarks.h200_candidates import H200


def emit(folder: Path) -> None:
    from search_space.sketches.cuda_attention_fwd.lower import lower
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, object]] = {}
    todo = kernels()
    for i, (key, (workload, candidate)) in enumerate(todo.items()):
        path, note = folder / f"{key}.cu", folder / f"{key}.json"
        if not (path.exists() and note.exists()):
            begun = time.perf_counter()
            lowered = lower(workload, H200, candidate.knobs)
            source = cuda_source(lowered, H200)
            assert lowered.launch is not None
            launch = with_parameters(lowered.launch, source)
            path.write_text(source)
            orders = {k["symbol"]: k["parameters"] for k in launch["kernels"]}
            note.write_text(json.dumps({"parameters": orders, "candidate": candidate.to_json()}))
            print(f"{i + 1}/{len(todo)} {key} {time.perf_counter() - begun:.1f} s", flush=True)
        index[key] = json.loads(note.read_text())
    (folder / "kernels.json").write_text(json.dumps(index))


if __name__ == "__main__":
    emit(Path(sys.argv[1]))
