"""The child process that owns the GPU in the second GEMM race: checks and times one workload after another.

JSON lines on stdout. A hang or a sticky CUDA error costs the candidate announced last; the parent starts a new child.
"""

import json
import random
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.h200_candidates import H200
from benchmarks.h200_more_candidates import PLANS, kernel_key
from benchmarks.h200_more_inputs import cancelling_set, make_sets, peers
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tilewright.runtime.cuda_driver import CudaError
from tilewright.runtime.cuda_program import CudaProgram
from workers import cuda_bench as bench
from workers.check import Acceptance
from workers.inputs import make_inputs, poison
from workers.reference import reference

PROBES = 3
RACE_FACTOR = 1.4
FINALISTS = 5
_GRAPH_SECS = 6e-4
# The card lowers its clock in steps during the first tenth of a second of full load: all run that long first.
_HEAT_SECS = 0.1
_LARGE_BYTES = 1 << 33
_GONE = (700, 702, 714, 715, 716, 717, 718, 719)  # CUDA errors after which the context is lost


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


class Programs:
    """Loaded cubins by kernel key; parameters' order comes from the emitted notes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def have(self, workload: GemmWorkload, candidate: Candidate) -> bool:
        return (self._folder / f"{kernel_key(workload, candidate)}.cubin").exists()

    def load(self, workload: GemmWorkload, candidate: Candidate) -> CudaProgram:
        key = kernel_key(workload, candidate)
        _, launch = PLANS[candidate.sketch](workload, H200, candidate.knobs)
        orders = json.loads((self._folder / f"{key}.json").read_text())["parameters"]
        kernels = [{**k, "parameters": orders[k["symbol"]]} for k in launch["kernels"]]
        return CudaProgram((self._folder / f"{key}.cubin").read_bytes(), {**launch, "kernels": kernels})


class Shape:
    """One workload on the device: its rotating input sets, what is right on three recipes, the peers' calls."""

    def __init__(self, workload: GemmWorkload, timed: bool) -> None:
        self.w = workload
        self.sets, self.cold = make_sets(workload, H200.l2_bytes if timed else 0)
        self.recipes: list[tuple[dict[str, Any], Callable[[Any], tuple[bool, float]]]] = []
        # The adversarial recipe of the largest workloads would not fit beside the others while it is made.
        hard = [make_inputs(workload, "adversarial", "cuda")] if workload.footprint_bytes() < _LARGE_BYTES else []
        for inputs in (self.sets[0], *hard):
            accept = Acceptance(workload, reference(workload, inputs))
            self.recipes.append((inputs, lambda c, accept=accept: _verdict(accept, c)))
        inputs, exact = cancelling_set(workload)
        off = 0.0 if workload.epilogue == "none" else 2.0**-7  # an epilogue's function may round the other way
        expected = exact.to(self.sets[0]["c"].dtype).float()
        self.recipes.append((inputs, lambda c: (bool(_equal(c, expected, off).all()), 0.0)))
        for tensors, _ in self.recipes:
            tensors.setdefault("c", poison(workload.outputs()[0], "cuda"))
        self.names = {name: getattr(workload, name) for name in ("m", "n", "k", "batch", "groups")}
        floor = max(workload.min_bytes() / 4.0e12, workload.flops() / 1.2e15) + 1.5e-6
        self.repeats = max(1, round(_GRAPH_SECS / floor / len(self.sets)))

    def bind(self, program: CudaProgram, tensors: dict[str, Any], spaces: dict[str, Any]) -> bench.Call:
        def allocate(name: str, nbytes: int, _zero: bool) -> tuple[object, int]:
            if name not in spaces:
                spaces[name] = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
            return spaces[name], spaces[name].data_ptr()

        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        bound = program.bind(self.names, addresses, allocate)
        return lambda: bound.launch(torch.cuda.current_stream().cuda_stream)


def _verdict(accept: Acceptance, c: Any) -> tuple[bool, float]:
    result = accept.check({"c": c})
    return result.ok, result.max_rel_err


def _equal(c: Any, exact: Any, off: float) -> Any:
    return ((c.float() - exact).abs() <= off * (1.0 + exact.abs())) | exact.isnan()


class Entry:
    def __init__(self, shape: Shape, program: CudaProgram, candidate: Candidate) -> None:
        spaces: dict[str, Any] = {}
        self.candidate, self.shape = candidate, shape
        self.calls = [shape.bind(program, t, spaces) for t in shape.sets]
        self.checks = [(shape.bind(program, t, spaces), t["c"], verdict) for t, verdict in shape.recipes]
        self.graph: tuple[Any, int] | None = None
        self.probe = float("inf")

    def check(self) -> tuple[bool, float]:
        """Every recipe on a poisoned output: (all right, largest error of the random one)."""
        right, errors = [], []
        for call, c, verdict in self.checks:
            c.fill_(float("nan"))
            call()
            torch.cuda.synchronize()
            ok, error = verdict(c)
            right.append(ok)
            errors.append(error)
        return all(right), errors[0]


def try_candidate(shape: Shape, programs: Programs, candidate: Candidate, best: float, timed: bool) -> Entry | None:
    """Check, then probe. Says what came of it; None when it was wrong or too slow."""
    entry = Entry(shape, programs.load(shape.w, candidate), candidate)
    for _ in range(2):  # the second run finds the state that the first left behind
        right, error = entry.check()
        if not right:
            say(tried=candidate.key, outcome="WRONG_ANSWER", max_rel_err=error if error < 1e30 else None)
            return None
    if not timed:
        say(tried=candidate.key, outcome="OK", run_secs=[], max_rel_err=error)
        return None
    entry.graph = bench.capture(entry.calls, shape.repeats)
    bench.replay_secs(entry.graph)
    times = [bench.replay_secs(entry.graph)]
    if times[0] < RACE_FACTOR * best:
        times += [bench.replay_secs(entry.graph) for _ in range(PROBES - 1)]
    entry.probe = statistics.median(times)
    say(tried=candidate.key, outcome="OK", run_secs=times, max_rel_err=error)
    return entry


def peer_graphs(shape: Shape) -> dict[str, tuple[Any, int]]:
    """One graph a peer; one that torch refuses on this shape is said and left out."""
    graphs = {}
    for name, calls in peers(shape.w, shape.sets).items():
        try:
            calls[0]()
            torch.cuda.synchronize()
            graphs[name] = bench.capture(calls, shape.repeats)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            say(peer=name, refused=str(error).splitlines()[0][:300])
    return graphs


def choose(entries: list[Entry]) -> list[Entry]:
    """The best few of each launch kind and sketch, so that a new sketch is seen beside the old."""
    chosen: list[Entry] = []
    kinds = sorted({(e.candidate.sketch, bool(e.candidate.knobs.get("dependent"))) for e in entries})
    for kind in kinds:
        of_kind = [e for e in entries if (e.candidate.sketch, bool(e.candidate.knobs.get("dependent"))) == kind]
        chosen += sorted(of_kind, key=lambda e: e.probe)[: FINALISTS if not kind[1] else 3]
    return chosen


def finals(shape: Shape, entries: list[Entry], seed: int, most_rounds: int) -> None:
    """The best few and the peers, interleaved. The winner of each kind is chosen on the first third of the rounds and
    its ratios are taken from the others, so that the luckiest sample is not the one reported."""
    rng = random.Random(seed)
    chosen = choose(entries)
    graphs = {e.candidate.key: e.graph for e in chosen if e.graph is not None}
    others = peer_graphs(shape)
    total = sum(bench.replay_secs(g) * g[1] for g in [*graphs.values(), *others.values()])
    rounds = max(12, min(most_rounds, round(0.5 / max(total, 1e-4))))
    heat = max(2, round(_HEAT_SECS / max(total, 1e-4)))
    times = bench.interleaved({**graphs, **others}, rounds, rng, warm_up=heat)
    cut = rounds // 3
    rows = []
    for sketch, dependent in sorted({(e.candidate.sketch, bool(e.candidate.knobs.get("dependent"))) for e in chosen}):
        keys = [e.candidate.key for e in chosen
                if (e.candidate.sketch, bool(e.candidate.knobs.get("dependent"))) == (sketch, dependent)]  # fmt: skip
        best = min(keys, key=lambda key: statistics.median(times[key][:cut]))
        right, error = next(e for e in chosen if e.candidate.key == best).check()
        if not right:
            say(wrong_after_timing=best)
            continue
        ratios = {name: bench.paired_ratio(times[name][cut:], times[best][cut:], rng) for name in others}
        rows.append({
            "sketch": sketch, "launch": "dependent" if dependent else "stream", "candidate": best,
            "latency_s": statistics.median(times[best][cut:]), "ratios": ratios, "max_rel_err": error,
        })  # fmt: skip
    baselines = {name: statistics.median(times[name][cut:]) for name in others}
    say(final=rows, baselines=baselines, rounds=rounds, cold=shape.cold, times=times)


def race(index: int, suite: str, workload: GemmWorkload, candidates: list[Candidate], programs: Programs,
         skip: set[tuple[int, str]], most_rounds: int) -> None:  # fmt: skip
    timed = suite != "checks"
    shape = Shape(workload, timed)
    alive: list[Entry] = []
    best = {False: float("inf"), True: float("inf")}
    for candidate in candidates:
        dependent = bool(candidate.knobs.get("dependent"))
        if (index, candidate.key) in skip or not programs.have(workload, candidate):
            continue
        say(start=candidate.key)
        try:
            entry = try_candidate(shape, programs, candidate, best[dependent], timed)
        except CudaError as error:
            say(tried=candidate.key, outcome="RUN_ERROR", error=str(error)[:300])
            if error.code in _GONE:
                raise
            continue
        if entry is not None:
            alive.append(entry)
            best[dependent] = min(best[dependent], entry.probe)
    say(start="final")
    if alive:
        finals(shape, alive, index, most_rounds)


def run(
    entries: Iterable[tuple[int, str, GemmWorkload, list[Candidate]]],
    folder: Path,
    skip: set[tuple[int, str]],
    most_rounds: int,
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    programs = Programs(folder)
    for index, suite, workload, candidates in entries:
        say(shape=index)
        race(index, suite, workload, candidates, programs, skip, most_rounds)
        say(done=index)
        torch.cuda.empty_cache()
