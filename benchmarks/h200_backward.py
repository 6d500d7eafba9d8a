"""Attention backward on an H200: checks against float64 autograd, and a race against cuDNN's and FlashAttention-2's.

python -m benchmarks.h200_backward emit DIR       CUDA sources of the candidates (needs TVM, no GPU)
python -m benchmarks.h200_backward compile DIR    cubins (needs nvcc)
python -m benchmarks.h200_backward check DIR      every candidate against float64, each in a process of its own
python -m benchmarks.h200_backward race DIR SECONDS   those that were right and the peers, interleaved; JSON lines
python -m benchmarks.h200_backward report [LOG]   into tables.backward of docs/results/h200_attention.json
"""

import concurrent.futures
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.knob import Knobs
from search_space.sketches.cuda_attention_bwd.space import SKETCH, plan

# consumers, q_stages, do_stages, ds_buffers, order by head_dim
_TILES: dict[int, tuple[tuple[int, int, int, int, str], ...]] = {
    64: (
        (2, 2, 2, 2, "heads"),
        (2, 2, 2, 2, "keys"),
        (2, 3, 3, 2, "heads"),
        (2, 2, 2, 1, "heads"),
        (1, 2, 2, 1, "heads"),
        (1, 2, 2, 2, "keys"),
    ),
    128: ((2, 2, 2, 2, "heads"), (2, 2, 2, 2, "keys"), (2, 2, 1, 1, "heads"), (2, 3, 2, 2, "heads")),
}
_NAMES = ("consumers", "q_stages", "do_stages", "ds_buffers", "order")
# (batch, heads_q, heads_kv, seq_q, seq_kv, causal, layout) checked for every tile: tails, both alignments, groups, rows
# that see nothing.
CHECKS: tuple[tuple[int, int, int, int, int, bool, str], ...] = (
    (1, 1, 1, 64, 128, False, "bhsd"),
    (1, 2, 2, 256, 256, False, "bhsd"),
    (2, 4, 2, 256, 256, True, "bshd"),
    (1, 4, 1, 200, 333, True, "bhsd"),
    (1, 2, 2, 300, 130, True, "bshd"),
    (2, 2, 1, 77, 500, False, "bhsd"),
    (1, 8, 8, 1, 513, True, "bhsd"),
)
TOKENS, HIDDEN = 16384, 2048
RECORDS = Path("benchmarks/records/h200_backward.jsonl.gz")  # of the published race


def knobs_of(tile: tuple[int, int, int, int, str]) -> Knobs:
    return dict(zip(_NAMES, tile))


def candidates() -> dict[str, tuple[AttentionWorkload, Candidate]]:
    """name -> a workload that the kernel is compiled from, and the choice (extents are given at run time). The first
    tile of each head_dim also in float16, the plain ones also deterministic."""
    found = {}
    for dim, tiles in _TILES.items():
        for causal in (False, True):
            for at, tile in enumerate(tiles):
                kinds = ["", *(["_det"] if tile[1:4] == (2, 2, 2) else []), *(["_fp16"] if at == 0 else [])]
                for kind in kinds:
                    w = workload(dim, (1, 2, 2, 256, 256, causal, "bhsd"), dtype_of(kind), kind == "_det")
                    assert SKETCH.violated(w, H200, knobs_of(tile)) is None, tile
                    name = f"{dim}_{'causal' if causal else 'full'}_{'_'.join(map(str, tile))}{kind}"
                    found[name] = (w, Candidate.of(SKETCH.name, SKETCH.version, knobs_of(tile)))
    return found


def dtype_of(name: str) -> str:
    return "float16" if name.endswith("_fp16") else "bfloat16"


def workload(
    dim: int, shape: tuple[int, int, int, int, int, bool, str], dtype: str = "bfloat16", deterministic: bool = False
) -> AttentionWorkload:
    batch, heads_q, heads_kv, seq_q, seq_kv, causal, layout = shape
    return AttentionWorkload.from_json(
        {
            "batch": batch, "heads_q": heads_q, "heads_kv": heads_kv, "seq_q": seq_q, "seq_kv": seq_kv, "head_dim": dim,
            "causal": causal, "layout": layout, "dtype": dtype, "pass": "backward", "deterministic": deterministic,
        }
    )  # fmt: skip


def emit(folder: Path) -> None:
    from search_space.sketches.cuda_attention_bwd.lower import lower
    from workers.build.cuda import cuda_source, with_parameters

    folder.mkdir(parents=True, exist_ok=True)
    for name, (w, candidate) in candidates().items():
        note = folder / f"{name}.json"
        if note.exists():
            continue
        lowered = lower(w, H200, candidate.knobs)
        source = cuda_source(lowered, H200)
        (folder / f"{name}.cu").write_text(source)
        assert lowered.launch is not None
        orders = {k["symbol"]: k["parameters"] for k in with_parameters(lowered.launch, source)["kernels"]}
        note.write_text(json.dumps({"candidate": candidate.to_json(), "parameters": orders}))
        print(name, flush=True)


def compile_all(folder: Path) -> None:
    from workers.build.cuda import compile_source, read_report

    def one(path: Path) -> str:
        cubin = path.with_suffix(".cubin")
        if cubin.exists():
            return ""
        code, report = compile_source(path.read_text(), H200.arch)
        cubin.write_bytes(code)
        spilled = sum(r.spill_bytes for r in read_report(report))
        return f"{path.stem}: {spilled} bytes spilled{', wgmma serialised' * ('C75' in report)}"

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for line in pool.map(one, sorted(folder.glob("*.cu"))):
            if line and not line.endswith(" 0 bytes spilled"):
                print(line, flush=True)


def kernel(folder: Path, name: str, w: AttentionWorkload, deterministic: bool) -> Any:
    """The candidate's kernel for a workload of other extents."""
    w = dataclasses.replace(w, deterministic=deterministic)
    from tilewright.runtime import Artifact, load
    from tilewright.runtime.cuda import CUBIN

    note = json.loads((folder / f"{name}.json").read_text())
    candidate = Candidate.from_json(note["candidate"])
    _, launch = plan(w, H200, candidate.knobs)
    kernels = []
    for k in launch["kernels"]:
        order = note["parameters"][k["symbol"]]
        kernels.append({**k, "arguments": {n: k["arguments"][n] for n in order}, "parameters": order})
    operands = {
        side: [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in tensors]
        for side, tensors in (("inputs", w.inputs()), ("outputs", w.outputs()))
    }
    manifest = {
        "schema": 1, "kind": "cubin", "workload": w.to_json(), "candidate": candidate.to_json(),
        "target": H200.to_json(), "prepack": [], "launch": {**launch, "kernels": kernels}, **operands,
    }  # fmt: skip
    return load(Artifact(manifest, {CUBIN: (folder / f"{name}.cubin").read_bytes()}))


def make(w: AttentionWorkload) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, float64 gradients by autograd, with the magnitudes that bound them), on the GPU."""
    import torch

    def heads(x: Any) -> Any:
        return x if w.layout == "bhsd" else x.transpose(1, 2)

    shapes = {o.name: o.shape for o in (*w.inputs(), *w.outputs())}
    dtype = getattr(torch, w.dtype)
    inputs = {n: torch.randn(shapes[n], device="cuda").to(dtype) for n in ("q", "k", "v", "do")}
    leaves = [inputs[n].double().requires_grad_() for n in "qkv"]
    q, k, v = (heads(x) for x in leaves)
    k, v = (x.repeat_interleave(w.heads_q // w.heads_kv, 1) for x in (k, v))
    scores = w.softmax_scale * (q @ k.mT)
    if w.causal:
        position = torch.arange(w.seq_q, device="cuda")[:, None] + w.seq_kv - w.seq_q
        scores = scores.masked_fill(torch.arange(w.seq_kv, device="cuda")[None, :] > position, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.clamp_min(-1e300)[..., None])
    o = heads(weights @ v)
    wanted = torch.autograd.grad(o, leaves, inputs["do"].double())
    inputs["o"] = o.detach().to(dtype).contiguous()
    inputs["lse"] = lse.detach().float().contiguous()
    return inputs, dict(zip(("dq", "dk", "dv"), wanted))


def check_one(folder: Path, name: str) -> None:
    """Prints a JSON line a shape. Accepted: relative errors (by norm, and the largest over the largest) that bfloat16's
    roundings of O, P, dS and the result explain."""
    import torch

    torch.manual_seed(0)
    dim, deterministic = int(name.split("_")[0]), name.endswith("_det")
    for shape in CHECKS:
        if shape[5] != ("causal" in name):
            continue
        w = workload(dim, shape, dtype_of(name), deterministic)
        inputs, wanted = make(w)
        run = kernel(folder, name, w, deterministic)
        outs = tuple(torch.full(o.shape, float("nan"), device="cuda", dtype=inputs["q"].dtype) for o in w.outputs())
        run(*(inputs[o.name] for o in w.inputs()), out=outs)
        torch.cuda.synchronize()
        errors, bad = {}, False
        for o, got in zip(w.outputs(), outs):
            want = wanted[o.name]
            off = (got.double() - want).abs()
            norm = float(off.norm() / want.norm())
            most = float(off.max() / want.abs().max())
            bad |= not (norm < 0.012 and most < 0.03)
            errors[o.name] = [round(norm, 5), round(most, 5)]
        again = tuple(torch.empty_like(x) for x in outs)
        run(*(inputs[o.name] for o in w.inputs()), out=again)
        same = all(torch.equal(x, y) for x, y in zip(outs, again))
        bad |= deterministic and not same
        print(json.dumps({"name": name, "shape": shape, "bad": bad, "errors": errors, "same": same}), flush=True)


def check(folder: Path, chosen: list[str]) -> None:
    """Every candidate in a process of its own: one that hangs or faults ends alone."""
    names = chosen or list(candidates())

    def one(name: str) -> str:
        command = [sys.executable, "-m", "benchmarks.h200_backward", "check-one", str(folder), name]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as late:
            done = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            return done + json.dumps({"name": name, "bad": True, "error": "hang"})
        if ran.returncode:
            return ran.stdout + json.dumps({"name": name, "bad": True, "error": ran.stderr[-300:]})
        return ran.stdout

    good = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for name, text in zip(names, pool.map(one, names)):
            print(text.strip(), flush=True)
            if text and not any(json.loads(line)["bad"] for line in text.strip().splitlines()):
                good.append(name)
    (folder / "good.json").write_text(json.dumps(good))
    print(f"{len(good)} of {len(names)} candidates are right")


def race(folder: Path, seconds: float) -> None:
    from benchmarks.h200_backward_race import run

    run(folder, set(json.loads((folder / "good.json").read_text())), time.time() + seconds)


def report(log: Path) -> None:
    from benchmarks.h200_backward_report import report as write

    print(json.dumps(write(log)["summary"], indent=1))


def main() -> None:
    command, folder, *rest = (*sys.argv[1:], "") if len(sys.argv) == 2 else sys.argv[1:]
    actions: dict[str, Callable[[], None]] = {
        "emit": lambda: emit(Path(folder)),
        "compile": lambda: compile_all(Path(folder)),
        "check": lambda: check(Path(folder), rest),
        "check-one": lambda: check_one(Path(folder), rest[0]),
        "race": lambda: race(Path(folder), float(rest[0])),
        "report": lambda: report(Path(folder) if folder else RECORDS),
    }
    actions[command]()


if __name__ == "__main__":
    main()
