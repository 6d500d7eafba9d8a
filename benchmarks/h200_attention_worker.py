"""The child process that owns the GPU in the attention race: checks kernels, then races them, in JSON lines.

A hang or a sticky CUDA error costs the kernel or candidate that was announced last; the parent starts a new child.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import h200_attention_reference as ref
from benchmarks.h200_attention_candidates import checked_only, kernel_key, kernels, race_entries
from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.sketches.cuda_attention_fwd.space import plan
from tilewright.runtime import Artifact, load
from tilewright.runtime.cuda import CUBIN
from tilewright.runtime.cuda_driver import CudaError
from tilewright.runtime.cuda_program import CudaProgram
from workers import cuda_bench as bench

PROBES = 3
RACE_FACTOR = 1.25
FINALISTS = 4
ROUNDS = 30
SUSTAINED_ROUNDS = 12
_REST_SECS = 3e-3  # before each sample: the card is at its power limit, a hungry kernel would slow its successor
_GRAPH_SECS = 2e-3
_GUARD = 4096  # elements before and behind O that must stay as they were
# batch, seq_q, seq_kv, heads_q, heads_kv: ragged, short, grouped, more queries than keys and fewer.
CASES = (
    (2, 256, 256, 4, 4), (1, 1000, 1000, 4, 2), (2, 77, 333, 6, 2), (1, 333, 77, 4, 1), (1, 1, 513, 8, 2),
    (3, 129, 128, 2, 2), (2, 40, 17, 2, 1), (1, 2048, 2048, 4, 4), (2, 191, 1025, 6, 3), (1, 3, 2, 5, 5),
    (3, 700, 650, 32, 8), (1, 4096, 4000, 2, 1), (2, 2000, 2100, 16, 4),
)  # fmt: skip
_LARGE_SCORES = (1, 7)  # cases run with scores four times as large too: maxima move a lot
_GONE = (700, 702, 714, 715, 716, 717, 718, 719)  # CUDA errors that end a context


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


class Programs:
    """Loaded cubins by kernel key; parameters' order comes from the emitted index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = json.loads((folder / "kernels.json").read_text())

    def has(self, key: str) -> bool:
        return (self._folder / f"{key}.cubin").exists()

    def load(self, w: AttentionWorkload, candidate: Candidate) -> CudaProgram:
        code, launch = self._described(w, candidate)
        return CudaProgram(code, launch)

    def artifact(self, w: AttentionWorkload, candidate: Candidate) -> Artifact:
        code, launch = self._described(w, candidate)
        manifest = {
            "schema": 1, "kind": "cubin", "workload": w.to_json(), "candidate": candidate.to_json(),
            "target": H200.to_json(), "prepack": [], "launch": launch,
            "inputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in w.inputs()],
            "outputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in w.outputs()],
        }  # fmt: skip
        return Artifact(manifest, {CUBIN: code})

    def _described(self, w: AttentionWorkload, candidate: Candidate) -> tuple[bytes, dict[str, Any]]:
        key = kernel_key(w, candidate)
        _, launch = plan(w, H200, candidate.knobs)
        orders = self._index[key]["parameters"]
        described = [{**k, "parameters": orders[k["symbol"]]} for k in launch["kernels"]]
        return (self._folder / f"{key}.cubin").read_bytes(), {**launch, "kernels": described}


def make_inputs(w: AttentionWorkload, seed: int, spread: float = 1.0) -> dict[str, Any]:
    """Random normal q, k, v; o and lse. O lies between guards."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tensors: dict[str, Any] = {}
    for operand in w.inputs():
        dtype = getattr(torch, operand.dtype)
        tensors[operand.name] = torch.randn(operand.shape, device="cuda", generator=generator, dtype=dtype)
    tensors["q"] *= spread
    size = w.outputs()[0].nbytes // 2
    tensors["guarded"] = torch.full((size + 2 * _GUARD,), 7.0, device="cuda", dtype=tensors["q"].dtype)
    tensors["o"] = tensors["guarded"][_GUARD:-_GUARD].view(w.outputs()[0].shape)
    tensors["lse"] = torch.empty(w.batch, w.heads_q, w.seq_q, device="cuda")
    return tensors


def bind(w: AttentionWorkload, program: CudaProgram, tensors: Mapping[str, Any]) -> bench.Call:
    def allocate(_name: str, nbytes: int, _zero: bool) -> tuple[object, int]:
        owner = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        return owner, owner.data_ptr()

    names = {n: getattr(w, n) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")}
    addresses = {name: tensors[name].data_ptr() for name in ("q", "k", "v", "o", "lse")}
    bound = program.bind(names, addresses, allocate)
    return lambda: bound.launch(torch.cuda.current_stream().cuda_stream)


def check(
    w: AttentionWorkload, call: bench.Call, tensors: Mapping[str, Any], reference: ref.Reference
) -> tuple[bool, float]:
    """Twice: the second launch finds what the first one left in the counter; O and LSE are poisoned before each."""
    worst = 0.0
    for _ in range(2):
        tensors["o"].fill_(float("nan"))
        tensors["lse"].fill_(float("nan"))
        call()
        torch.cuda.synchronize()
        right, error = ref.check_output(tensors["o"], reference)
        guards = torch.cat((tensors["guarded"][:_GUARD], tensors["guarded"][-_GUARD:]))
        right = right and bool((guards == 7.0).all()) and (not w.lse or ref.check_lse(tensors["lse"], reference))
        if not right:
            return False, error
        worst = max(worst, error)
    return True, worst


def check_kernels(folder: Path, skip: set[str]) -> None:
    """Every kernel on every case, in both layouts and, where the launch may differ, one tile a block too."""
    programs = Programs(folder)
    references: dict[Any, tuple[dict[str, Any], ref.Reference]] = {}
    for key, (w, candidate) in kernels().items():
        if key in skip or not programs.has(key):
            continue
        say(start=key)
        worst, wrong = 0.0, []
        for index, layout, spread in _case_list():
            batch, seq_q, seq_kv, heads_q, heads_kv = CASES[index]
            case = replace(
                w, batch=batch, seq_q=seq_q, seq_kv=seq_kv, heads_q=heads_q, heads_kv=heads_kv, layout=layout
            )
            known = (case.key, spread)
            if known not in references:
                made = make_inputs(case, index, spread)
                references[known] = made, ref.make_reference(case, *(made[n] for n in "qkv"), dtype=torch.float64)
            tensors, reference = references[known]
            for schedule in ("dynamic",) if candidate.knobs["schedule"] == "dynamic" else ("static", "single"):
                chosen = candidate.replace(schedule=schedule, group=(0, 1, 3)[index % 3])
                right, error = check(case, bind(case, programs.load(case, chosen), tensors), tensors, reference)
                if not right:
                    wrong.append([index, layout, spread, schedule, error if error == error else None])
                worst = max(worst, error)
        say(check=key, wrong=wrong, max_rel_err=worst if worst == worst and not wrong else None)


def check_served(programs: Programs) -> None:
    """One kernel the way a user runs it: an artifact through tilewright's loader, on a stream of its own."""
    w, candidate = next((w, c) for w, c in checked_only() if w.head_dim == 128 and c.knobs["schedule"] == "dynamic")
    w = replace(w, batch=2, heads_q=8, heads_kv=2, seq_q=700, seq_kv=900)
    tensors = make_inputs(w, 1)
    reference = ref.make_reference(w, *(tensors[n] for n in "qkv"), dtype=torch.float64)
    kernel = load(programs.artifact(w, candidate))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):
            o, lse = kernel(*(tensors[n] for n in "qkv"))
    stream.synchronize()
    right, error = ref.check_output(o, reference)
    say(served=bool(right and ref.check_lse(lse, reference)), max_rel_err=error)


def _case_list() -> list[tuple[int, str, float]]:
    plain = [(i, ("bshd", "bhsd")[i % 2], 1.0) for i in range(len(CASES))]
    return plain + [(i, "bhsd", 4.0) for i in _LARGE_SCORES] + [(10, "bhsd", 1.0), (2, "bhsd", 1.0)]


def peers(w: AttentionWorkload, t: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    from fa3_fwd_interface import flash_attn_func

    q, k, v = (ref.heads_first(w, t[n]) for n in "qkv")
    grouped = w.heads_q != w.heads_kv

    def sdpa(backend: SDPBackend) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                o = F.scaled_dot_product_attention(q, k, v, is_causal=w.causal, enable_gqa=grouped)
            return ref.heads_first(w, o)

        return call

    return {
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "fa2": sdpa(SDPBackend.FLASH_ATTENTION),
        "fa3": lambda: flash_attn_func(t["q"], t["k"], t["v"], causal=w.causal),
    }


class Entry:
    def __init__(self, candidate: Candidate, call: bench.Call, graph: tuple[Any, int], times: list[float]) -> None:
        self.candidate, self.call, self.graph, self.times = candidate, call, graph, times
        self.probe = statistics.median(times)


def race(index: int, w: AttentionWorkload, chosen: list[Candidate], programs: Programs, skip: set[str]) -> None:
    say(shape=index)
    begun = time.perf_counter()
    tensors = make_inputs(w, index)
    reference = ref.make_reference(w, *(tensors[n] for n in "qkv"))
    repeats = max(1, round(_GRAPH_SECS / (w.flops() / 6e14)))
    alive: list[Entry] = []
    for candidate in chosen:
        if candidate.key in skip or kernel_key(w, candidate) in skip or not programs.has(kernel_key(w, candidate)):
            continue
        say(start=candidate.key)
        try:
            call = bind(w, programs.load(w, candidate), tensors)
            right, error = check(w, call, tensors, reference)
        except CudaError as failed:
            say(tried=candidate.key, outcome="RUN_ERROR", error=str(failed)[:300])
            if failed.code in _GONE:
                raise
            continue
        if not right:
            say(tried=candidate.key, outcome="WRONG_ANSWER")
            continue
        graph = bench.capture([call], repeats)
        bench.replay_secs(graph)
        times = [_rested_secs(graph)]
        best = min((e.probe for e in alive), default=float("inf"))
        if times[0] < RACE_FACTOR * best:
            times += [_rested_secs(graph) for _ in range(PROBES - 1)]
        say(tried=candidate.key, outcome="OK", run_secs=times, max_rel_err=error)
        alive.append(Entry(candidate, call, graph, times))
        alive = sorted(alive, key=lambda e: e.probe)[:12]
    say(start="final")
    finals(w, tensors, reference, alive, index, repeats)
    say(done=index, wall_s=time.perf_counter() - begun)


def _rested_secs(graph: tuple[Any, int]) -> float:
    time.sleep(_REST_SECS)
    return bench.replay_secs(graph)


def rested(graphs: Mapping[str, tuple[Any, int]], rounds: int, rng: random.Random) -> dict[str, list[float]]:
    """name -> one time a round; every round runs all of them once, in a new random order, each after a rest."""
    names = list(graphs)
    out: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        rng.shuffle(names)
        for name in names:
            out[name].append(_rested_secs(graphs[name]))
    return out


def finals(w: AttentionWorkload, tensors: Mapping[str, Any], reference: ref.Reference, alive: list[Entry], seed: int,
           repeats: int) -> None:  # fmt: skip
    """The best few and the peers, interleaved: the twelve best of the probes once more over six rounds, then four of
    them against the peers. The winner is chosen on the first third of those rounds, its ratios come from the others."""
    rng = random.Random(seed)
    if not alive:
        return
    again = rested({e.candidate.key: e.graph for e in alive}, 6, rng)
    alive = sorted(alive, key=lambda e: statistics.median(again[e.candidate.key]))[:FINALISTS]
    graphs = {e.candidate.key: e.graph for e in alive}
    peer_errors: dict[str, object] = {}
    for name, call in peers(w, tensors).items():
        try:
            peer_errors[name] = ref.check_output(call(), reference)[1]
            graphs[name] = bench.capture([call], repeats)
        except (RuntimeError, ImportError) as error:
            peer_errors[name] = str(error)[:200]
    times = rested(graphs, ROUNDS, rng)
    hot = bench.interleaved(graphs, SUSTAINED_ROUNDS, rng)
    cut = ROUNDS // 3
    best = min(alive, key=lambda e: statistics.median(times[e.candidate.key][:cut]))
    ours = times[best.candidate.key][cut:]
    names = [n for n in ("cudnn", "fa2", "fa3") if n in times]
    ratios = {n: bench.paired_ratio(times[n][cut:], ours, rng) for n in names}
    sustained = {n: bench.paired_ratio(hot[n], hot[best.candidate.key], rng) for n in names}
    right, error = check(w, best.call, tensors, reference)
    say(
        final=best.candidate.key, right_after=right, max_rel_err=error, latency_s=statistics.median(ours),
        peers_s={n: statistics.median(times[n][cut:]) for n in names}, ratios=ratios, sustained=sustained,
        peer_errors=peer_errors,
        rounds=ROUNDS - cut, again={k: statistics.median(v) for k, v in again.items()}, times=times,
    )  # fmt: skip


def run(folder: Path, plan_: Mapping[str, Any]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")  # makes the context that the driver calls use
    skip = set(plan_["skip"])
    if plan_["check"]:
        check_kernels(folder, skip | set(plan_["checked"]))
        say(start="served")
        if "served" not in skip:
            check_served(Programs(folder))
        say(checked=True)
    programs, entries = Programs(folder), race_entries()
    for index in plan_["indices"]:
        race(index, *entries[index], programs, skip)
        torch.cuda.empty_cache()
