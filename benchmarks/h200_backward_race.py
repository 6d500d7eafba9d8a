"""The race of `benchmarks.h200_backward`: candidates and peers interleaved in random order, paired within rounds."""

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.h200_backward import HIDDEN, TOKENS, candidates, dtype_of, kernel, workload
from search_space.attention import AttentionWorkload

_ROUNDS = 12
_SAMPLE_S = 4e-3  # of one measurement, as far as whole calls allow
_PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
LENGTHS = (16384, 4096, 1024, 8192, 2048, 512)


def shapes() -> list[AttentionWorkload]:
    """FlashAttention's grid: 16k tokens, hidden 2048."""
    found = []
    for seq in LENGTHS:
        for dim in (128, 64):
            for causal in (True, False):
                heads = HIDDEN // dim
                found.append(workload(dim, (TOKENS // seq, heads, heads, seq, seq, causal, "bhsd")))
    return found


def run(folder: Path, allowed: set[str], deadline: float) -> None:
    """Prints a JSON line a shape: seconds of a call by name, a list over rounds."""
    rng = random.Random(0)
    for w in shapes():
        if time.time() > deadline:
            print(json.dumps({"left": w.to_json()}), flush=True)
            continue
        begun = time.time()
        calls, wrong = _calls(folder, allowed, w)
        counts = {name: _count(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_ROUNDS):
            order = list(calls)
            rng.shuffle(order)
            for name in order:
                times[name].append(_seconds(calls[name], counts[name]))
        print(
            json.dumps({"workload": w.to_json(), "secs": times, "wrong": wrong, "wall_s": time.time() - begun}),
            flush=True,
        )
        told = {n: round(w.flops() / statistics.median(t) / 1e12) for n, t in times.items()}
        print(f"{w.head_dim} {w.seq_q} {'causal' if w.causal else 'full'} TFLOP/s", told, wrong, flush=True)


def _calls(folder: Path, allowed: set[str], w: AttentionWorkload) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Calls by name, all on the same operands; and candidates that disagree with cuDNN, left out."""
    torch.manual_seed(0)
    shape = (w.batch, w.heads_q, w.seq_q, w.head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    do = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {}
    for name, backend in _PEERS.items():
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=w.causal)

        def peer(o: Any = o) -> Any:
            return torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

        calls[name] = peer
    wanted = calls["fa2"]()
    with torch.no_grad():
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, w.causal)[:2]
    operands = [q.detach(), k.detach(), v.detach(), o.contiguous(), lse.contiguous(), do]
    wrong = []
    mask = "causal" if w.causal else "full"
    for name in candidates():
        if name not in allowed or not name.startswith(f"{w.head_dim}_{mask}_") or dtype_of(name) != w.dtype:
            continue
        mine = kernel(folder, name, w, name.endswith("_det"))
        outs = tuple(torch.empty(x.shape, device=x.device, dtype=x.dtype) for x in wanted)
        launch = mine.launcher(operands, outs)
        launch()
        off = [float((x.float() - y.float()).norm() / y.float().norm()) for x, y in zip(outs, wanted)]
        if max(off) < 0.02:
            calls[name] = launch
        else:
            wrong.append(f"{name} {off}")
    return calls, wrong


def _seconds(call: Callable[[], Any], count: int) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    for _ in range(count):
        call()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3 / count


def _count(call: Callable[[], Any]) -> int:
    call()
    return max(1, round(_SAMPLE_S / _seconds(call, 2)))
