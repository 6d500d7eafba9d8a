"""The GPU half of the measuring protocol: rotating inputs, NaN-poisoned checks, CUDA graphs, paired ratios.

Times are seconds a call: CUDA events round the replay of a graph of back-to-back launches over enough input sets that
none is found in L2. Contestants take turns in a new random order each round; ratios are taken within a round, since
the clock and the temperature of the card drift.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from search_space.gemm import GemmWorkload

EPSILON_FP32 = 2.0**-24
_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}  # half an ulp, relative
_TINY = {"bfloat16": 1e-30, "float16": 2.0**-25, "float32": 1e-30}
_MOST_SETS = 64
Call = Callable[[], None]
Tensors = dict[str, Any]


@dataclass
class InputSets:
    """`sets` are dictionaries of a, b, (bias,) c; `cold` says whether together they exceed L2 amply."""

    sets: list[Tensors]
    cold: bool


def make_sets(w: GemmWorkload, l2_bytes: int, seed: int, device: str = "cuda") -> InputSets:
    """Random normal inputs, as many sets as it takes to leave four times L2 behind."""
    generator = torch.Generator(device=device).manual_seed(seed)
    wanted = max(2, math.ceil(4 * l2_bytes / w.footprint_bytes()))
    count = min(_MOST_SETS, wanted)
    sets = []
    for _ in range(count):
        tensors: Tensors = {}
        for operand in (*w.inputs(), *w.outputs()):
            dtype = getattr(torch, operand.dtype)
            tensors[operand.name] = torch.randn(operand.shape, device=device, generator=generator, dtype=dtype)
        sets.append(tensors)
    return InputSets(sets, cold=count * w.footprint_bytes() >= 2 * l2_bytes)


def cancelling_set(w: GemmWorkload, device: str = "cuda") -> tuple[Tensors, Any]:
    """(inputs, exact result): the first half of k adds up to a large number that the second half takes away again.

    Row i of A is all s_i, column j of B is t_j times (1, ..., 1, -1, ..., -1, 0) with s, t in {-1, 1, 2}: the result
    s_i t_j (k even) or 0 is exact in every type, unless a partial sum was rounded to 16 bits or dropped.
    """
    half = w.k // 2
    pattern = torch.ones(w.k, device=device)
    pattern[half:] = -1.0
    pattern[-1] = 0.0
    choices = torch.tensor([1.0, -1.0, 2.0], device=device)
    s = choices[torch.arange(w.m, device=device) % 3]
    t = choices[torch.arange(w.n, device=device) // 7 % 3]
    dtype = getattr(torch, w.dtype_a)
    a = s[:, None].expand(w.m, w.k)
    b = pattern[:, None] * t[None, :]
    tensors: Tensors = {}
    for operand in w.inputs():
        if operand.name == "bias":
            tensors["bias"] = torch.zeros(operand.shape, device=device, dtype=dtype)
            continue
        value = a if operand.name == "a" else b
        transposed = w.trans_a if operand.name == "a" else w.trans_b
        value = value.t() if transposed else value
        tensors[operand.name] = value.to(dtype).expand(operand.shape).contiguous()
    exact = float(pattern.sum()) * s[:, None] * t[None, :]
    return tensors, apply_epilogue(w.epilogue, exact).to(dtype)


@dataclass
class Reference:
    """float32 tensors: the result rounded once from float64, and what each element may be off by."""

    value: Any
    tolerance: Any


def apply_epilogue(epilogue: str, x: Any) -> Any:
    kind = epilogue.split("+")[-1]
    functions = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "silu": torch.nn.functional.silu}
    return functions[kind](x) if kind in functions else x


def make_reference(w: GemmWorkload, tensors: Tensors) -> Reference:
    """Accepted: |C - C64| <= c eps32 (|A| |B|) + one rounding of the output type, c = 16 + 4 sqrt(k).

    c covers the truncating float32 accumulation of wgmma, 16 elements of k at a time; accumulating in 16 bits is off
    by about 2^-9 sqrt(k / 16) of a partial sum, many times more. Every epilogue here has a slope of at most 1.13.
    """
    a = tensors["a"].transpose(-1, -2) if w.trans_a else tensors["a"]
    b = tensors["b"].transpose(-1, -2) if w.trans_b else tensors["b"]
    exact = torch.matmul(a.double(), b.double())
    if "bias" in tensors:
        exact += tensors["bias"].double()
    exact = apply_epilogue(w.epilogue, exact)
    size = torch.matmul(a.abs(), b.abs()).float() * (1.01 * 1.13)
    value = exact.float()
    del exact
    tolerance = size * (EPSILON_FP32 * (16 + 4 * math.sqrt(w.k))) + value.abs() * (_ROUNDING[w.dtype_out] * 1.01)
    return Reference(value, tolerance + _TINY[w.dtype_out])


def check_output(output: Any, reference: Reference) -> tuple[bool, float]:
    """(accepted, largest relative error by norm); NaN, where nothing was written, is never accepted."""
    error = (output.float() - reference.value).abs_()
    accepted = bool((error <= reference.tolerance).all())
    return accepted, float(error.norm() / reference.value.norm())


def capture(calls: Sequence[Call], repeats: int) -> tuple[Any, int]:
    """(graph of `repeats` passes over `calls`, launches in it)."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        calls[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(repeats):
                for call in calls:
                    call()
    torch.cuda.synchronize()
    return graph, repeats * len(calls)


def replay_secs(graph: tuple[Any, int]) -> float:
    """One timed replay, seconds a call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph[0].replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / graph[1]


def interleaved(
    graphs: Mapping[str, tuple[Any, int]], rounds: int, rng: random.Random, warm_up: int = 2
) -> dict[str, list[float]]:
    """name -> one time a round; every round runs all of them once, in a new random order."""
    names = list(graphs)
    out: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + warm_up):
        rng.shuffle(names)
        marks = []
        for name in names:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graphs[name][0].replay()
            end.record()
            marks.append((name, begin, end))
        torch.cuda.synchronize()
        if index >= warm_up:
            for name, begin, end in marks:
                out[name].append(float(begin.elapsed_time(end)) * 1e-3 / graphs[name][1])
    return out


def paired_ratio(base: Sequence[float], ours: Sequence[float], rng: random.Random) -> tuple[float, float, float]:
    """Median of base / ours over paired rounds, with its 95 % bootstrap interval."""
    ratios = [b / o for b, o in zip(base, ours, strict=True)]
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), medians[25], medians[974]
