"""Host time of a call through tilewright.load against torch.matmul: `python -m benchmarks.h200_host DIR`.

Also checks, on the GPU, what the launcher promises: the current stream is used, a call can be captured in a CUDA
graph and replayed, and new tensors get tensor maps of their own.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.h200_candidates import H200, PLANS, candidates
from benchmarks.h200_keys import kernel_key
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tilewright.runtime import Artifact, Kernel, load

_CALLS = 400


def artifact_of(folder: Path, w: GemmWorkload, candidate: Candidate) -> Artifact:
    key = kernel_key(w, candidate)
    _, launch = PLANS[candidate.sketch](w, H200, candidate.knobs)
    orders = json.loads((folder / "kernels.json").read_text())[key]["parameters"]
    kernels = [{**k, "parameters": orders[k["symbol"]]} for k in launch["kernels"]]
    manifest = {
        "schema": 1,
        "kind": "cubin",
        "workload": w.to_json(),
        "candidate": candidate.to_json(),
        "target": H200.to_json(),
        "inputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in w.inputs()],
        "outputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in w.outputs()],
        "prepack": [],
        "launch": {**launch, "kernels": kernels},
    }
    return Artifact(manifest, {"kernel.cubin": (folder / f"{key}.cubin").read_bytes()})


def host_secs(call: Callable[[], object], rounds: int = 15) -> float:
    """Median host seconds a call; the queue is drained between rounds, so that no launch waits for the device."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - begun) / _CALLS)
    torch.cuda.synchronize()
    return statistics.median(times)


def check_promises(kernel: Kernel, w: GemmWorkload) -> dict[str, bool]:
    a, b = (torch.randn(o.shape, device="cuda", dtype=torch.bfloat16) for o in w.inputs())
    want = a.float() @ b.float().t()

    def close(c: torch.Tensor) -> bool:
        return bool(torch.allclose(c.float(), want, rtol=2e-2, atol=0.5))

    out = torch.full((w.m, w.n), float("nan"), device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernel(a, b, out=out)
    stream.synchronize()
    on_stream = close(out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(a, b)
    captured.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    in_graph = close(captured)
    a.neg_()
    graph.replay()
    torch.cuda.synchronize()
    want = -want
    return {"own stream": on_stream, "graph": in_graph, "graph reads new values": close(captured)}


def compare_hosts(folder: Path, m: int, candidate: Candidate) -> dict[str, float]:
    """On a product so small that the device never is what is waited for."""
    w = GemmWorkload.from_json({"m": m, "n": 256, "k": 256, "dtype": "bf16", "trans_b": True})
    kernel = load(artifact_of(folder, w, candidate))
    a, b = (torch.randn(o.shape, device="cuda", dtype=torch.bfloat16) for o in w.inputs())
    out = torch.empty(m, 256, device="cuda", dtype=torch.bfloat16)
    transposed = b.t()
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: kernel(a, b, out=out),
        "torch": lambda: torch.matmul(a, transposed, out=out),
    }
    order = list(calls)
    random.Random(m).shuffle(order)
    return {name: host_secs(calls[name]) for name in order}


def main() -> None:
    folder = Path(sys.argv[1])
    rows = []
    for m, n, k in ((16, 4096, 4096), (128, 4096, 4096), (2048, 4096, 4096)):
        w = GemmWorkload.from_json({"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True})
        seen: set[str] = set()
        for candidate in candidates(w):
            if candidate.sketch in seen or not (folder / f"{kernel_key(w, candidate)}.cubin").exists():
                continue
            seen.add(candidate.sketch)
            kernel = load(artifact_of(folder, w, candidate))
            promises = check_promises(kernel, w)
            times = compare_hosts(folder, m, candidate)
            rows.append({"m": m, "sketch": candidate.sketch, "promises": promises, "host_secs": times})
    print(json.dumps({"host": rows}))


if __name__ == "__main__":
    main()
