"""Compiles and runs a CPU attention choice, and what it should give: the formula in float64, row by row."""

import importlib
import math

import numpy as np
import torch
import tvm

from search_space.attention import AttentionWorkload
from search_space.knob import Knobs
from search_space.lowering.target import llvm_target
from search_space.registry import get_sketch
from search_space.target import Target
from search_space.workload import parse_workload

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def host_target() -> Target:
    """This machine as far as a lowering reads it."""
    arch = tvm.target.codegen.llvm_get_system_cpu()
    known = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": arch}))
    features = tuple(f for f in ("avx512f", "avx2", "neon") if f in known)
    bits = 512 if "avx512f" in features else 256 if "avx2" in features else 128
    return Target("cpu", arch, "host", 2, bits, 32768, 524288, 33554432, 2**33, features=features)


def attention(**fields: object) -> AttentionWorkload:
    workload = parse_workload({"op": "attention", **fields})
    assert isinstance(workload, AttentionWorkload)
    return workload


def random_inputs(w: AttentionWorkload, seed: int = 0) -> list[torch.Tensor]:
    """Uniform in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(o.shape, TORCH[o.dtype]) for o in w.inputs()]
    return [(torch.rand(s, generator=generator) * 2 - 1).to(t) for s, t in shapes]


def compile_choice(sketch: str, w: AttentionWorkload, target: Target, knobs: Knobs):
    """The compiled function of one choice; the choice must be legal."""
    assert get_sketch(sketch).violated(w, target, knobs) is None
    lowered = importlib.import_module(f"search_space.sketches.{sketch}.lower").lower(w, target, knobs)
    return tvm.compile(lowered.module, target=llvm_target(target))["main"]


def run_choice(function, w: AttentionWorkload, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs, poisoned with NaN before the call."""
    outputs = [torch.full(o.shape, math.nan, dtype=TORCH[o.dtype]) for o in w.outputs()]
    kept = [t.clone() for t in inputs]
    function(*(t.reshape(-1) for t in inputs), *(t.reshape(-1) for t in outputs))
    for before, after in zip(kept, inputs, strict=True):
        assert torch.equal(before, after), "an input was changed"
    return outputs


def reference(w: AttentionWorkload, inputs: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(O, |P||V| (1 + largest |scale| |q||k| of the row / 8), LSE) in float64: O and its bound in the layout of the
    workload, LSE [batch, heads_q, seq_q]. An error of a score is a relative error of its weight."""
    q, k, v = (t.to(torch.float64).numpy() for t in inputs)
    if w.layout == "bshd":
        q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
    group = w.heads_q // w.heads_kv
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q, k) * w.softmax_scale
    if w.softcap > 0:
        scores = w.softcap * np.tanh(scores / w.softcap)
    shown = np.zeros((w.seq_q, w.seq_kv), dtype=bool)
    for i in range(w.seq_q):
        first, last = w.visible(i)
        shown[i, first:last] = True
    scores = np.where(shown, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.where(shown, np.exp(scores - np.where(np.isfinite(top), top, 0.0)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    p = weights / np.where(total > 0, total, 1.0)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -np.inf)[..., 0]
    out, bound = np.einsum("bhij,bhjd->bhid", p, v), np.einsum("bhij,bhjd->bhid", p, np.abs(v))
    size = np.einsum("bhid,bhjd->bhij", np.abs(q), np.abs(k)).max(axis=-1, keepdims=True) * abs(w.softmax_scale)
    bound = bound * (1 + size / 8)
    if w.layout == "bshd":
        out, bound = out.transpose(0, 2, 1, 3), bound.transpose(0, 2, 1, 3)
    return out, bound, lse


# Float32 arithmetic throughout: a few units of 2^-24 a step of either sum, and one rounding of the output type.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def check_choice(sketch: str, w: AttentionWorkload, target: Target, knobs: Knobs, inputs: list[torch.Tensor]) -> None:
    """Runs the choice and compares every element with the reference."""
    got = run_choice(compile_choice(sketch, w, target, knobs), w, inputs)
    out, bound, lse = reference(w, inputs)
    error = np.abs(got[0].to(torch.float64).numpy() - out)
    allowed = bound * (2.0**-19) + np.abs(out) * ROUNDING[w.dtype] * 1.01 + 1e-7
    assert np.all(error <= allowed), f"{knobs}: off by {np.nanmax(error / allowed)} times the bound"
    if w.lse:
        np.testing.assert_allclose(got[1].numpy(), lse, rtol=2e-6, atol=2e-6)
