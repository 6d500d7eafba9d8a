"""The operators of `tilewright.torch` on an H200: host time of a call against torch's own.

python -m benchmarks.h200_operators emit DIR           CUDA sources of a small set of schedules (needs TVM, no GPU)
python -m benchmarks.h200_operators pack DIR WINNERS   artifacts, as `tilewright export` writes them (needs nvcc)
python -m benchmarks.h200_operators race WINNERS       host times (needs the GPU and torch)

`pytest tests/tilewright/test_torch_cuda.py --cuda-winners WINNERS` checks what the same artifacts compute.
"""

import concurrent.futures
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.h200_candidates import H200
from search_space.candidate import Candidate
from search_space.registry import generate_sketches, get_sketch
from search_space.sketch import Space
from search_space.workload import Workload, parse_workload

_LINEAR = {"op": "gemm", "dtype": "bfloat16", "trans_b": True}
_TINY = {"n": 256, "k": 256}
_HEADS = {"op": "attention", "dtype": "bfloat16", "batch": 2, "heads_q": 8, "heads_kv": 2}
_TRAINED = {**_HEADS, "seq_q": 200, "seq_kv": 333, "head_dim": 128, "causal": True}
_TRAINED_ROWS = {**_HEADS, "seq_q": 256, "seq_kv": 256, "head_dim": 64, "layout": "bshd"}
# Workload, sketch. The tiny ones are for host time: the device is never what is waited for.
CASES: tuple[tuple[dict[str, Any], str], ...] = (
    ({**_LINEAR, "m": 16, **_TINY}, "cuda_gemm_skinny"),
    ({**_LINEAR, "m": 128, **_TINY}, "cuda_gemm_ws"),
    ({**_LINEAR, "m": 128, **_TINY, "epilogue": "bias"}, "cuda_gemm_ws"),
    ({**_LINEAR, "m": 192, **_TINY}, "cuda_gemm_streamk"),
    ({**_LINEAR, "m": 16, "n": 4096, "k": 4096, "b_constant": True}, "cuda_gemm_skinny"),
    ({**_LINEAR, "m": 256, "n": 1024, "k": 512, "epilogue": "bias+gelu"}, "cuda_gemm_ws"),
    ({**_LINEAR, "m": 255, "n": 129, "k": 77, "trans_b": False}, "cuda_gemm_padded"),
    ({"op": "gemm", "dtype": "bfloat16", "batch": 3, "m": 128, "n": 192, "k": 256}, "cuda_gemm_ws"),
    # A product with both of its gradients.
    ({"op": "gemm", "dtype": "bfloat16", "m": 256, "n": 512, "k": 384}, "cuda_gemm_ws"),
    ({"op": "gemm", "dtype": "bfloat16", "m": 256, "n": 384, "k": 512, "trans_b": True}, "cuda_gemm_ws"),
    ({"op": "gemm", "dtype": "bfloat16", "m": 384, "n": 512, "k": 256, "trans_a": True}, "cuda_gemm_ws"),
    ({**_HEADS, "seq_q": 500, "seq_kv": 700, "head_dim": 128, "causal": True}, "cuda_attention_fwd"),
    ({**_HEADS, "seq_q": 320, "seq_kv": 320, "head_dim": 64, "layout": "bshd"}, "cuda_attention_fwd"),
    ({**_HEADS, "batch": 1, "seq_q": 128, "seq_kv": 128, "head_dim": 64}, "cuda_attention_fwd"),
    # Attention with its gradient, in both layouts.
    ({**_TRAINED, "lse": True}, "cuda_attention_fwd"),
    ({**_TRAINED, "pass": "backward"}, "cuda_attention_bwd"),
    ({**_TRAINED, "pass": "backward", "deterministic": True}, "cuda_attention_bwd"),
    ({**_TRAINED_ROWS, "lse": True}, "cuda_attention_fwd"),
    ({**_TRAINED_ROWS, "pass": "backward"}, "cuda_attention_bwd"),
)


def cases() -> list[tuple[Workload, Candidate]]:
    """Each with the first choice that its sketch's authors would try; constant weights with dependent launch."""
    found = []
    for data, name in CASES:
        workload = parse_workload(data)
        sketch = get_sketch(name)
        space = next((s for s in generate_sketches(workload, H200) if s.sketch is sketch), None)
        assert space is not None, f"{name} refuses {data}"
        knobs = dict(sketch.seeds(workload, H200)[0])
        if data.get("b_constant"):
            knobs["dependent"] = True
        found.append((workload, _legal(space, knobs)))
    return found


def _legal(space: Space, knobs: dict[str, Any]) -> Candidate:
    broken = space.violated({**space.fixed, **knobs})
    assert broken is None, f"{space.workload.to_json()}: {broken}"
    return space.candidate(knobs)


def emit(folder: Path) -> None:
    from workers.build.build import lower
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    for number, (workload, candidate) in enumerate(cases()):
        note = folder / f"{number:02}.json"
        if note.exists():
            continue
        lowered = lower(workload, H200, candidate)
        assert lowered.launch is not None
        source = cuda_source(lowered, H200)
        (folder / f"{number:02}.cu").write_text(source)
        launch = with_parameters(lowered.launch, source)
        note.write_text(
            json.dumps({"workload": workload.to_json(), "candidate": candidate.to_json(), "launch": launch})
        )
        print(number, candidate.sketch, workload.to_json(), flush=True)


def pack(folder: Path, winners: Path) -> None:
    from tilewright.export import write_schedule
    from tilewright.runtime import Artifact
    from tilewright.runtime.cuda import CUBIN
    from workers.build.cuda import compile_source

    def artifact(note: Path) -> Artifact:
        kept = json.loads(note.read_text())
        code, _ = compile_source(note.with_suffix(".cu").read_text(), H200.arch)
        w = parse_workload(kept["workload"])
        operands = {
            side: [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in tensors]
            for side, tensors in (("inputs", w.inputs()), ("outputs", w.outputs()))
        }
        manifest = {"schema": 1, "kind": "cubin", **kept, **operands, "target": H200.to_json(), "prepack": []}
        return Artifact(manifest, {CUBIN: code})

    notes = sorted(folder.glob("[0-9]*.json"))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        built = list(pool.map(artifact, notes))
    entries = []
    for note, one in zip(notes, built):
        schedule = {"id": f"sch_{note.stem}", "workload": one.manifest["workload"], "artifact": one.digest}
        detail = {
            "schedule": {**schedule, "target": H200.to_json()},
            "served": {"kind": "tilewright"},
            "environment": {},
        }
        entries.append(write_schedule(winners, detail, one.to_bytes())[1])
    (winners / "index.json").write_text(json.dumps({"schema": 1, "schedules": entries}))


def race(winners: Path) -> None:
    """Median host seconds of one call, interleaved in random order: the operators, torch, and torch.compile of both."""
    import torch

    import tilewright.torch as tw
    from benchmarks.h200_host import host_secs

    tw.use(winners)
    rows = {}
    rng = random.Random(0)
    with torch.no_grad():
        for name, (ours, theirs) in _host_calls(torch, tw).items():
            served = tw.counts().tuned
            ours()
            assert tw.counts().tuned == served + 1, name
            times: dict[str, list[float]] = {"ours": [], "torch": []}
            for _ in range(5):
                order: list[tuple[str, Callable[[], object]]] = [("ours", ours), ("torch", theirs)]
                rng.shuffle(order)
                for who, call in order:
                    times[who].append(host_secs(call, rounds=5))
            rows[name] = {who: sorted(t)[len(t) // 2] for who, t in times.items()}
    print(json.dumps({"host_secs": rows, "device": torch.cuda.get_device_name()}))


def _host_calls(torch: Any, tw: Any) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    def rand(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    sdpa = torch.nn.functional.scaled_dot_product_attention
    linear = torch.nn.functional.linear
    weight, bias, x = rand(256, 256), rand(256), {m: rand(m, 256) for m in (16, 128, 192)}
    b, q, k, v = weight.t(), rand(1, 8, 128, 64), rand(1, 2, 128, 64), rand(1, 2, 128, 64)
    traced = torch.compile(lambda a: tw.matmul(a, b))
    traced_torch = torch.compile(lambda a: torch.matmul(a, b))
    return {
        "matmul m=16": (lambda: tw.matmul(x[16], b), lambda: torch.matmul(x[16], b)),
        "matmul m=128": (lambda: tw.matmul(x[128], b), lambda: torch.matmul(x[128], b)),
        "matmul m=192 (workspace)": (lambda: tw.matmul(x[192], b), lambda: torch.matmul(x[192], b)),
        "linear m=128": (lambda: tw.linear(x[128], weight), lambda: linear(x[128], weight)),
        "linear m=128 bias": (lambda: tw.linear(x[128], weight, bias), lambda: linear(x[128], weight, bias)),
        "attention 128": (lambda: tw.attention(q, k, v), lambda: sdpa(q, k, v, enable_gqa=True)),
        "compiled matmul m=128": (lambda: traced(x[128]), lambda: traced_torch(x[128])),
    }


def main() -> None:
    command, *folders = sys.argv[1:]
    if command == "emit":
        emit(Path(folders[0]))
    elif command == "pack":
        pack(Path(folders[0]), Path(folders[1]))
    else:
        race(Path(folders[0]))


if __name__ == "__main__":
    main()
