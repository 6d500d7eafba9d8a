"""Writes the CUDA source of every kernel of an H200 attention race, in DIR.

python -m benchmarks.h200_attention_emit DIR            of the forward race
python -m benchmarks.h200_attention_emit DIR --decode   of the decode race

Needs TVM and no GPU. DIR/kernels.json gives the order of each kernel's parameters, so that the race needs no TVM.
"""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import h200_attention_candidates, h200_decode_candidates
from benchmarks.h200_candidates import H200
from search_space.candidate import Candidate
from search_space.workload import Workload


def emit(folder: Path, todo: Mapping[str, tuple[Workload, Candidate]]) -> None:
    """Sources that are there already are kept: a key names all that a source depends on, but for the lowering."""
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, object]] = {}
    for i, (key, (workload, candidate)) in enumerate(todo.items()):
        path, note = folder / f"{key}.cu", folder / f"{key}.json"
        if not (path.exists() and note.exists()):
            begun = time.perf_counter()
            lower = importlib.import_module(f"search_space.sketches.{candidate.sketch}.lower").lower
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
    chosen = h200_decode_candidates if "--decode" in sys.argv else h200_attention_candidates
    emit(Path(sys.argv[1]), chosen.kernels())
