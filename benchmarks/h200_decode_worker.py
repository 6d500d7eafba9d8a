"""The child process that owns the GPU in the decode race: checks kernels, then races them, in JSON lines.

A hang or a sticky CUDA error costs the kernel or candidate that was announced last; the parent starts a new child.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import h200_attention_reference as ref
from benchmarks.h200_attention_worker import say
from benchmarks.h200_candidates import H200
from benchmarks.h200_decode_candidates import checks, kernel_key, race_entries
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.sketches.cuda_attention_decode.space import plan
from tilewright.runtime.cuda_driver import CudaError
from tilewright.runtime.cuda_program import CudaProgram
from workers import cuda_bench as bench
from workers.check import Acceptance
from workers.inputs import make_inputs
from workers.reference import reference

PROBES = 3
RACE_FACTOR = 1.25
FINALISTS = 4
ROUNDS = 30
_GRAPH_SECS = 2e-3
_GUARD = 4096  # bytes before and behind O and LSE that must stay as they were
_MOST_SETS = 24
_GONE = (700, 702, 714, 715, 716, 717, 718, 719)  # CUDA errors that end a context
Tensors = dict[str, Any]


class Programs:
    """Loaded cubins by kernel key; parameters' order comes from the emitted index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = json.loads((folder / "kernels.json").read_text())

    def has(self, key: str) -> bool:
        return (self._folder / f"{key}.cubin").exists()

    def load(self, w: AttentionWorkload, candidate: Candidate) -> CudaProgram:
        key = kernel_key(w, candidate)
        _, launch = plan(w, H200, candidate.knobs)
        orders = self._index[key]["parameters"]
        described = [{**k, "parameters": orders[k["symbol"]]} for k in launch["kernels"]]
        return CudaProgram((self._folder / f"{key}.cubin").read_bytes(), {**launch, "kernels": described})


def outputs(w: AttentionWorkload) -> Tensors:
    """o and lse between guards, which `guards` looks at."""
    tensors: Tensors = {}
    for name, shape, dtype in (("o", w.outputs()[0].shape, w.dtype), ("lse", (w.batch, w.heads_q, w.seq_q), "float32")):
        kind = getattr(torch, dtype)
        edge = _GUARD // torch.empty(0, dtype=kind).element_size()
        count = int(torch.Size(shape).numel())
        whole = torch.full((count + 2 * edge,), 7.0, device="cuda", dtype=kind)
        tensors[f"{name}_whole"], tensors[name] = whole, whole[edge : edge + count].view(shape)
        tensors[f"{name}_guards"] = (whole[:edge], whole[edge + count :])
    return tensors


def guarded(tensors: Tensors) -> bool:
    return all(bool((part == 7.0).all()) for name in ("o", "lse") for part in tensors[f"{name}_guards"])


def bind(w: AttentionWorkload, program: CudaProgram, tensors: Mapping[str, Any]) -> bench.Call:
    def allocate(_name: str, nbytes: int, _zero: bool) -> tuple[object, int]:
        # Poisoned, but for the counters: a piece that nobody wrote must not go unnoticed.
        owner = torch.full((nbytes,), 0 if _zero else 255, dtype=torch.uint8, device="cuda")
        return owner, owner.data_ptr()

    names = {n: getattr(w, n) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")}
    addresses = {name: tensors[name].data_ptr() for name in ("q", "k", "v", "o", "lse")}
    bound = program.bind(names, addresses, allocate)
    return lambda: bound.launch(torch.cuda.current_stream().cuda_stream)


def check_case(
    w: AttentionWorkload, programs: Programs, chosen: Sequence[Candidate], recipe: str
) -> list[list[object]]:
    """What is wrong of each candidate, twice launched on poisoned, guarded outputs, against float64."""
    tensors: Tensors = make_inputs(w, recipe, "cuda")
    accepted = Acceptance(w, reference(w, tensors))
    tensors |= outputs(w)
    wrong: list[list[object]] = []
    for candidate in chosen:
        call = bind(w, programs.load(w, candidate), tensors)
        first: Any = None
        for launch in range(2):
            tensors["o"].fill_(float("nan"))
            tensors["lse"].fill_(float("nan"))
            call()
            torch.cuda.synchronize()
            result = accepted.check({n: tensors[n] for n in ("o", "lse") if n == "o" or w.lse})
            same = first is None or torch.equal(first, tensors["o"])
            first = tensors["o"].clone()
            if not (result.ok and guarded(tensors) and same):
                found = result.message or ("not the same twice" if result.ok and guarded(tensors) else "guards")
                wrong.append([w.to_json(), [candidate.knobs[n] for n in ("waves", "schedule")], launch, found[:200]])
                break
    return wrong


def check_kernels(folder: Path, skip: set[str]) -> None:
    programs = Programs(folder)
    for index, check in enumerate(checks()):
        if check.name in skip:
            continue
        say(start=check.name)
        begun, wrong, cases = time.perf_counter(), [], list(check.cases())
        if not all(programs.has(kernel_key(w, c)) for w, c in cases):
            say(check=check.name, wrong=[["not compiled"]], cases=0)
            continue
        grouped: dict[str, tuple[AttentionWorkload, list[Candidate]]] = {}
        for w, candidate in cases:
            grouped.setdefault(w.key, (w, []))[1].append(candidate)
        for turn, (w, chosen) in enumerate(grouped.values()):
            recipe = "adversarial" if (turn + index) % 3 == 0 else "random"
            wrong += check_case(w, programs, chosen, recipe)
        say(check=check.name, wrong=wrong, cases=len(cases), secs=round(time.perf_counter() - begun, 2))


def make_sets(w: AttentionWorkload, seed: int) -> list[Tensors]:
    """Inputs larger than L2 together, twice over, so that no launch finds its keys there."""
    count = max(1, min(_MOST_SETS, -(-2 * H200.l2_bytes // w.footprint_bytes())))
    generator = torch.Generator(device="cuda").manual_seed(seed)
    sets: list[Tensors] = []
    for _ in range(count):
        tensors: Tensors = {}
        for operand in w.inputs():
            dtype = getattr(torch, operand.dtype)
            tensors[operand.name] = torch.randn(operand.shape, device="cuda", generator=generator, dtype=dtype)
        sets.append(tensors | outputs(w))
    return sets


def peers(w: AttentionWorkload, t: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    from fa3_fwd_interface import flash_attn_func

    q, k, v = (ref.heads_first(w, t[n]) for n in "qkv")
    grouped = w.heads_q != w.heads_kv

    def sdpa(backend: SDPBackend) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return ref.heads_first(w, F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped))

        return call

    return {
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "fa2": sdpa(SDPBackend.FLASH_ATTENTION),
        "fa3": lambda: flash_attn_func(t["q"], t["k"], t["v"], num_splits=0),
    }


def right_on(w: AttentionWorkload, call: bench.Call, tensors: Tensors, expected: ref.Reference) -> tuple[bool, float]:
    tensors["o"].fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    right, error = ref.check_output(tensors["o"], expected)
    return right and guarded(tensors), error


def race(index: int, w: AttentionWorkload, chosen: list[Candidate], programs: Programs, skip: set[str]) -> None:
    say(shape=index)
    begun = time.perf_counter()
    sets = make_sets(w, index)
    expected = ref.make_reference(w, *(sets[0][n] for n in "qkv"))
    repeats = max(1, round(_GRAPH_SECS / (len(sets) * max(3e-6, w.min_bytes() / 4e12))))
    alive: list[tuple[float, Candidate, list[bench.Call], tuple[Any, int]]] = []
    for candidate in chosen:
        if candidate.key in skip or not programs.has(kernel_key(w, candidate)):
            continue
        say(start=candidate.key)
        try:
            program = programs.load(w, candidate)
            calls = [bind(w, program, tensors) for tensors in sets]
            right, error = right_on(w, calls[0], sets[0], expected)
        except CudaError as failed:
            say(tried=candidate.key, outcome="RUN_ERROR", error=str(failed)[:300])
            if failed.code in _GONE:
                raise
            continue
        if not right:
            say(tried=candidate.key, outcome="WRONG_ANSWER")
            continue
        graph = bench.capture(calls, repeats)
        bench.replay_secs(graph)
        times = [bench.replay_secs(graph)]
        if times[0] < RACE_FACTOR * min((a[0] for a in alive), default=float("inf")):
            times += [bench.replay_secs(graph) for _ in range(PROBES - 1)]
        say(tried=candidate.key, outcome="OK", run_secs=times, max_rel_err=error)
        alive = sorted([*alive, (statistics.median(times), candidate, calls, graph)], key=lambda a: a[0])[:10]
    say(start="final")
    if alive:
        finals(w, sets, expected, alive, index, repeats)
    say(done=index, wall_s=time.perf_counter() - begun)


def finals(w: AttentionWorkload, sets: list[Tensors], expected: ref.Reference, alive: list[Any], seed: int,
           repeats: int) -> None:  # fmt: skip
    """The ten best of the probes once more over six rounds, then four of them against the peers, interleaved. The
    winner is chosen on the first third of those rounds, its ratios come from the others."""
    rng = random.Random(seed)
    again = bench.interleaved({c.key: graph for _, c, _, graph in alive}, 6, rng)
    alive = sorted(alive, key=lambda a: statistics.median(again[a[1].key]))[:FINALISTS]
    graphs = {c.key: graph for _, c, _, graph in alive}
    peer_errors: dict[str, object] = {}
    every = [peers(w, tensors) for tensors in sets]
    for name, call in every[0].items():
        try:
            peer_errors[name] = ref.check_output(call(), expected)[1]
            graphs[name] = bench.capture([of_set[name] for of_set in every], repeats)
        except (RuntimeError, ImportError) as missing:
            peer_errors[name] = str(missing)[:200]
    times = bench.interleaved(graphs, ROUNDS, rng)
    cut = ROUNDS // 3
    _, best, calls, _ = min(alive, key=lambda a: statistics.median(times[a[1].key][:cut]))
    ours = times[best.key][cut:]
    names = [n for n in ("cudnn", "fa2", "fa3") if n in times]
    right, error = right_on(w, calls[0], sets[0], expected)
    say(
        final=best.key, right_after=right, max_rel_err=error, latency_s=statistics.median(ours), sets=len(sets),
        peers_s={n: statistics.median(times[n][cut:]) for n in names},
        ratios={n: bench.paired_ratio(times[n][cut:], ours, rng) for n in names}, peer_errors=peer_errors,
        rounds=ROUNDS - cut, again={k: statistics.median(v) for k, v in again.items()}, times=times,
    )  # fmt: skip


def run(folder: Path, plan_: Mapping[str, Any]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")  # makes the context that the driver calls use
    skip = set(plan_["skip"])
    if plan_["check"]:
        check_kernels(folder, skip | set(plan_["checked"]))
        say(checked=True)
    programs, entries = Programs(folder), race_entries()
    for index in plan_["indices"]:
        w, chosen = entries[int(index)]
        race(int(index), w, chosen, programs, skip)
        torch.cuda.empty_cache()
