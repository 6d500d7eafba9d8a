"""Public fault reports on attention as small inputs with known answers, for the sketches of the GPU.

In the mask cases q = 0 and v[j] = j + 1, so that each row is the mean of the values it sees. Sources, by case: launch
grids (fla-org/flash-linear-attention 1096), bottom-right masks (Dao-AILab/flash-attention 282), windows (1133), head
dims that a kernel was not written for (1347), huge logits (pytorch/pytorch 121558).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from benchmarks.h200_candidates import H200
from search_space.attention import AttentionWorkload
from search_space.candidate import Candidate
from search_space.registry import generate_sketches
from workers.check import Acceptance
from workers.inputs import torch_dtype
from workers.reference import reference


@dataclass(frozen=True)
class Case:
    """`kind` says what the inputs are; `expected`: the value of every column of each row, None: the reference's."""

    name: str
    kind: str
    data: Mapping[str, object]
    expected: tuple[float, ...] | None = None

    def workload(self) -> AttentionWorkload:
        return AttentionWorkload.from_json({"batch": 1, "heads_q": 1, "lse": True, **self.data})

    def candidates(self) -> list[Candidate]:
        """An expert's first choice of every sketch that takes the workload, as far as it takes the values: the forward
        sketch's fused powers end at scores of 2^27."""
        w = self.workload()
        spaces = [s for s in generate_sketches(w, H200) if self.kind != "huge" or s.sketch.name != "cuda_attention_fwd"]
        return [Candidate.of(s.sketch.name, s.sketch.version, s.sketch.seeds(w, H200)[0]) for s in spaces]

    def inputs(self, device: str = "cuda") -> dict[str, torch.Tensor]:
        w = self.workload()
        shapes = {o.name: o.shape for o in w.inputs()}
        generator = torch.Generator(device).manual_seed(len(self.name))
        values = {n: torch.rand(s, generator=generator, device=device) * 2 - 1 for n, s in shapes.items()}
        if self.kind == "mean":
            values["q"].zero_()
            values["v"] = torch.arange(1.0, w.seq_kv + 1, device=device)[:, None].expand(shapes["v"])
        elif self.kind == "last column":
            for name in "qk":
                values[name][..., :-1] = 0.0
                values[name] *= 4.0
        elif self.kind == "huge":
            values = {name: torch.full(shape, 133120.0, device=device) for name, shape in shapes.items()}
        elif self.kind == "far apart":
            values["q"].fill_(1000.0)
            values["k"].fill_(-125.0)
            values["k"][..., 71, :] = 125.0
            values["v"] = torch.arange(0.0, w.seq_kv, device=device)[:, None].expand(shapes["v"])
        return {name: x.to(torch_dtype(w.dtype)).contiguous() for name, x in values.items()}


_MASK = {"head_dim": 64, "dtype": "fp16", "causal": True}
CASES = (
    Case("O4 65538 blocks", "random", {"batch": 10923, "heads_q": 6, "seq": 32, "head_dim": 16, "dtype": "fp16"}),
    Case("O5 more keys", "mean", {**_MASK, "seq_q": 2, "seq_kv": 5}, (2.5, 3)),
    Case("O5 fewer keys", "mean", {**_MASK, "seq_q": 5, "seq_kv": 3}, (0, 0, 1, 1.5, 2)),
    Case("O5 one query", "mean", {**_MASK, "seq_q": 1, "seq_kv": 7}, (4,)),
    Case("O6 window 1", "mean", {**_MASK, "seq": 4, "window_left": 1}, (1, 1.5, 2.5, 3.5)),
    Case("O6 window 0", "mean", {**_MASK, "seq": 4, "window_left": 0}, (1, 2, 3, 4)),
    Case("O6 window 3", "mean", {**_MASK, "seq": 4, "window_left": 3}, (1, 1.5, 2, 2.5)),
    Case("O6 window 4", "mean", {**_MASK, "seq": 4, "window_left": 4}, (1, 1.5, 2, 2.5)),
    Case("O6 window -1", "mean", {**_MASK, "seq": 4, "window_left": -1}, (1, 1.5, 2, 2.5)),
    Case("O7 8 heads on 2", "random", {**_MASK, "heads_q": 8, "heads_kv": 2, "seq": 9, "batch": 3}),
    Case("O7 8 heads on 1", "random", {**_MASK, "heads_q": 8, "heads_kv": 1, "seq": 9, "batch": 3}),
    Case("O7 8 heads on 8", "random", {**_MASK, "heads_q": 8, "heads_kv": 8, "seq": 9, "batch": 3}),
    *(
        Case(f"O8 dim {dim}", "last column", {"seq": 64, "head_dim": dim, "dtype": "fp16"})
        for dim in (80, 128, 224, 256)
    ),
    Case("O9 huge", "huge", {"seq": 1, "head_dim": 64, "dtype": "bf16"}, (133120.0,)),
    Case("O9 huge, 200 keys", "huge", {"seq_q": 4, "seq_kv": 200, "head_dim": 64, "dtype": "bf16"}, (133120.0,) * 4),
    Case("O9 far apart", "far apart", {"seq_q": 3, "seq_kv": 80, "head_dim": 64, "dtype": "bf16", "scale": 1.0},
         (71.0,) * 3),
)  # fmt: skip


def faults(case: Case, inputs: Mapping[str, torch.Tensor], o: torch.Tensor, lse: torch.Tensor) -> str:
    """What is wrong with a kernel's answer; empty when nothing is."""
    w = case.workload()
    if case.expected is not None:
        want = torch.tensor(case.expected, device=o.device)[:, None].expand(w.seq_q, w.head_dim_v)
        off = (o.float() - want).abs().max().item() if o.isfinite().all() else math.nan
        if not off <= 2.0**-9 * want.abs().max().item():  # half an ulp of a float16 mean, NaN refused
            return f"{case.name}: off by {off}: {o.float()[0, 0, :5, 0].tolist()}"
    if case.kind == "mean":
        counts = [max(0, last - first) for first, last in map(w.visible, range(w.seq_q))]
        sums = torch.tensor([math.log(n) if n else -math.inf for n in counts], device=o.device)
        if not torch.allclose(lse[0, 0], sums, atol=1e-5):
            return f"{case.name}: LSE {lse[0, 0].tolist()}"
    if case.expected is not None:
        return ""
    # A large batch is looked at where a launch limit would show: its first and last element.
    for b in sorted({0, w.batch - 1}):
        one, at = replace(w, batch=1), slice(b, b + 1)
        accepted = Acceptance(one, reference(one, {n: x[at].contiguous() for n, x in inputs.items()}))
        result = accepted.check({"o": o[at], "lse": lse[at]})
        if not result.ok:
            return f"{case.name}, batch {b}: {result.message}"
    return ""
