"""The child process that owns the GPU: checks and times the candidates of one shape after another, in JSON lines.

A hang or a sticky CUDA error costs the candidate that was announced last; the parent starts a new child for the rest.
"""

import json
import random
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.h200_candidates import H200, PLANS
from benchmarks.h200_keys import kernel_key
from search_space.candidate import Candidate
from search_space.gemm import GemmWorkload
from tilewright.runtime.cuda_driver import CudaError
from tilewright.runtime.cuda_program import CudaProgram
from workers import cuda_bench as bench

PROBES = 3
RACE_FACTOR = 1.5
FINALISTS = 12
DEPENDENT_FINALISTS = 3
_GRAPH_SECS = 6e-4
# The card lowers its clock in steps during the first tenth of a second of full load: all run that long first.
_HEAT_SECS = 0.1


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


class Programs:
    """Loaded cubins by kernel key; parameters' order comes from the emitted index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = json.loads((folder / "kernels.json").read_text())

    def load(self, workload: GemmWorkload, candidate: Candidate) -> CudaProgram:
        key = kernel_key(workload, candidate)
        _, launch = PLANS[candidate.sketch](workload, H200, candidate.knobs)
        orders = self._index[key]["parameters"]
        kernels = [{**k, "parameters": orders[k["symbol"]]} for k in launch["kernels"]]
        return CudaProgram((self._folder / f"{key}.cubin").read_bytes(), {**launch, "kernels": kernels})


class Shape:
    """One workload on the device: its input sets, references, and the vendor's call."""

    def __init__(self, workload: GemmWorkload, seed: int) -> None:
        self.w = workload
        self.inputs = bench.make_sets(workload, H200.l2_bytes, seed)
        self.reference = bench.make_reference(workload, self.inputs.sets[0])
        self.cancelling, self.exact = bench.cancelling_set(workload)
        self.cancelling["c"] = torch.empty_like(self.inputs.sets[0]["c"])
        self.names = {"m": workload.m, "n": workload.n, "k": workload.k, "batch": workload.batch}
        floor = max(workload.min_bytes() / 4.0e12, workload.flops() / 7e14) + 1.5e-6
        count = len(self.inputs.sets)
        self.repeats = max(1, round(_GRAPH_SECS / floor / count))

    def vendor(self) -> list[bench.Call]:
        return [self._vendor_call(t) for t in self.inputs.sets]

    def _vendor_call(self, t: bench.Tensors) -> bench.Call:
        a = t["a"].transpose(-1, -2) if self.w.trans_a else t["a"]
        b = t["b"].transpose(-1, -2) if self.w.trans_b else t["b"]
        return lambda: torch.matmul(a, b, out=t["c"])

    def bind(self, program: CudaProgram, tensors: bench.Tensors, spaces: dict[str, Any]) -> bench.Call:
        """Bindings of one candidate share workspaces: their launches follow each other on one stream."""

        def allocate(name: str, nbytes: int, _zero: bool) -> tuple[object, int]:
            if name not in spaces:
                spaces[name] = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
            return spaces[name], spaces[name].data_ptr()

        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        bound = program.bind(self.names, addresses, allocate)
        return lambda: bound.launch(torch.cuda.current_stream().cuda_stream)

    def check(self, random_call: bench.Call, cancelling_call: bench.Call) -> tuple[bool, float]:
        """Both recipes on poisoned outputs."""
        c = self.inputs.sets[0]["c"]
        c.fill_(float("nan"))
        self.cancelling["c"].fill_(float("nan"))
        random_call()
        cancelling_call()
        torch.cuda.synchronize()
        accepted, error = bench.check_output(c, self.reference)
        off = (self.cancelling["c"].float() - self.exact.float()).abs_()
        # An epilogue's function may round the other way.
        exact = bool((off <= (0.0 if self.w.epilogue == "none" else 2.0**-7)).all())
        return accepted and exact, error if exact else float("inf")


class Entry:
    def __init__(self, shape: Shape, program: CudaProgram, candidate: Candidate) -> None:
        spaces: dict[str, Any] = {}
        self.candidate, self.program, self.shape = candidate, program, shape
        self.calls = [shape.bind(program, t, spaces) for t in shape.inputs.sets]
        self.cancelling = shape.bind(program, shape.cancelling, spaces)
        self.graph: tuple[Any, int] | None = None
        self.probe = float("inf")

    def check(self) -> tuple[bool, float]:
        return self.shape.check(self.calls[0], self.cancelling)


def try_candidate(shape: Shape, programs: Programs, candidate: Candidate, best: float) -> Entry | None:
    """Check, then probe. Says what came of it; None when it was wrong or too slow."""
    program = programs.load(shape.w, candidate)
    entry = Entry(shape, program, candidate)
    for _ in range(2):  # the second run finds the state that the first left behind
        right, error = entry.check()
        if not right:
            say(tried=candidate.key, outcome="WRONG_ANSWER", max_rel_err=error if error < 1e30 else None)
            return None
    entry.graph = bench.capture(entry.calls, shape.repeats)
    bench.replay_secs(entry.graph)
    times = [bench.replay_secs(entry.graph)]
    if times[0] < RACE_FACTOR * best:
        times += [bench.replay_secs(entry.graph) for _ in range(PROBES - 1)]
    entry.probe = statistics.median(times)
    say(tried=candidate.key, outcome="OK", run_secs=times, max_rel_err=error)
    return entry


def finals(shape: Shape, entries: list[Entry], seed: int) -> None:
    """The best few and the vendor, interleaved; the winner is chosen on the first third of the rounds and its ratio is
    taken from the others, so that the luckiest sample is not the one reported."""
    rng = random.Random(seed)
    by_launch = {
        kind: sorted((e for e in entries if bool(e.candidate.knobs.get("dependent")) is flag), key=lambda e: e.probe)
        for kind, flag in (("stream", False), ("dependent", True))
    }
    chosen = by_launch["stream"][:FINALISTS] + by_launch["dependent"][:DEPENDENT_FINALISTS]
    graphs = {e.candidate.key: e.graph for e in chosen if e.graph is not None}
    graphs["torch"] = bench.capture(shape.vendor(), shape.repeats)
    total = sum(e.probe * e.graph[1] for e in chosen if e.graph is not None)
    rounds = max(12, min(30, round(0.5 / max(total, 1e-4))))
    times = bench.interleaved(graphs, rounds, rng, warm_up=max(2, round(_HEAT_SECS / max(total, 1e-4))))
    cut = rounds // 3
    rows = {}
    for kind, ordered in by_launch.items():
        keys = [e.candidate.key for e in ordered if e.candidate.key in times]
        if keys:
            best = min(keys, key=lambda key: statistics.median(times[key][:cut]))
            ratio = bench.paired_ratio(times["torch"][cut:], times[best][cut:], rng)
            rows[kind] = {"candidate": best, "latency_s": statistics.median(times[best][cut:]), "ratio": ratio}
    still = {e.candidate.key: e.check() for e in chosen}
    for kind in list(rows):
        right, error = still[rows[kind]["candidate"]]
        rows[kind]["max_rel_err"] = error
        if not right:
            say(wrong_after_timing=rows.pop(kind)["candidate"])
    say(final=rows, torch_s=statistics.median(times["torch"][cut:]), rounds=rounds, cold=shape.inputs.cold, times=times)


def run(entries: Iterable[tuple[int, GemmWorkload, list[Candidate]]], folder: Path, skip: set[tuple[int, str]]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    programs = Programs(folder)
    for index, workload, candidates in entries:
        say(shape=index)
        shape = Shape(workload, seed=index)
        alive: list[Entry] = []
        best = {False: float("inf"), True: float("inf")}
        for candidate in candidates:
            dependent = bool(candidate.knobs.get("dependent"))
            if (index, candidate.key) in skip:
                continue
            say(start=candidate.key)
            try:
                entry = try_candidate(shape, programs, candidate, best[dependent])
            except CudaError as error:
                say(tried=candidate.key, outcome="RUN_ERROR", error=str(error)[:300])
                if error.code in (700, 702, 714, 715, 716, 717, 718, 719):
                    raise  # the context is gone
                continue
            if entry is not None:
                alive.append(entry)
                best[dependent] = min(best[dependent], entry.probe)
                alive = [e for e in alive if e.probe <= RACE_FACTOR * best[bool(e.candidate.knobs.get("dependent"))]]
        say(start="final")
        if alive:
            finals(shape, alive, seed=index)
        say(done=index)
        del shape, alive
        torch.cuda.empty_cache()
