"""What is right: the workload's result in float64, with the magnitudes that bound what rounding may do to it.

Notation: u is the unit roundoff of the accumulator. A kernel's error is held against |A| |B| (the sum of the absolute
products), not against the result: cancellation may leave a result far smaller than its terms. References are computed
in blocks, so that no float64 copy of a whole operand or score matrix is needed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from search_space.attention import AttentionWorkload
from search_space.gemm import SCALE_BLOCK, GemmWorkload
from search_space.workload import Workload

_BLOCK_ELEMENTS = 1 << 23  # of one float64 block: 64 MiB


@dataclass(frozen=True)
class Reference:
    """`outputs`: name -> float64 tensor, NaN where nothing has to be written (rows of no group of a grouped GEMM).
    `magnitudes`: name -> term -> float32 tensor of the output's shape.

    GEMM has the term "sums": |A| |B| + |bias|. Attention's output has "values": P |V|, and "scores": by how much it
    moves when each score s_j moves by u * scale * |q| |k_j|, which is the square root of (sum_j P_j sigma_j^2)(variance
    of V under P) (Cauchy-Schwarz on sum_j P_j sigma_j (V_j - O)); its log-sum-exp has "scores": sum_j P_j sigma_j.
    """

    outputs: Mapping[str, torch.Tensor]
    magnitudes: Mapping[str, Mapping[str, torch.Tensor]]


def reference(workload: Workload, inputs: Mapping[str, torch.Tensor]) -> Reference:
    """ValueError for a workload that has no reference."""
    if isinstance(workload, GemmWorkload):
        return _grouped(workload, inputs) if workload.groups > 1 else _gemm(workload, inputs)
    if isinstance(workload, AttentionWorkload) and workload.pass_ == "forward" and workload.kv_layout == "dense":
        return _attention(workload, inputs)
    if isinstance(workload, AttentionWorkload) and workload.pass_ == "backward" and workload.kv_layout == "dense":
        from workers.reference_backward import attention_backward  # which is made of this module

        return attention_backward(workload, inputs)
    raise ValueError(f"no reference for {workload.to_json()}")


# --- GEMM ---


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "bias": lambda x: x,
    "bias+gelu": _gelu,
    "bias+relu": torch.relu,
    "bias+silu": lambda x: x * torch.sigmoid(x),
}


def _gemm(workload: GemmWorkload, inputs: Mapping[str, torch.Tensor]) -> Reference:
    a, b = inputs["a"], inputs["b"]
    a = (a.transpose(-1, -2) if workload.trans_a else a).reshape(workload.batch, workload.m, workload.k)
    b = (b.transpose(-1, -2) if workload.trans_b else b).reshape(workload.batch, workload.k, workload.n)
    out = torch.empty(workload.batch, workload.m, workload.n, dtype=torch.float64, device=a.device)
    sums = torch.empty_like(out, dtype=torch.float32)
    scales = (inputs.get("a_scale"), inputs.get("b_scale"))
    for i in range(workload.batch):
        _product(a[i], b[i], scales, inputs.get("bias"), out[i], sums[i])
    shape = workload.outputs()[0].shape
    result = _ACTIVATIONS[workload.epilogue](out)
    return Reference({"c": result.reshape(shape)}, {"c": {"sums": sums.reshape(shape)}})


def _grouped(workload: GemmWorkload, inputs: Mapping[str, torch.Tensor]) -> Reference:
    """Row ranges of the groups as the workload's docstring says; other rows are NaN, with magnitude 0."""
    a = inputs["a"].transpose(-1, -2) if workload.trans_a else inputs["a"]
    b = inputs["b"].transpose(-1, -2) if workload.trans_b else inputs["b"]
    a_scale, b_scale = inputs.get("a_scale"), inputs.get("b_scale")
    out = torch.full((workload.groups * workload.m, workload.n), math.nan, dtype=torch.float64, device=a.device)
    sums = torch.zeros_like(out, dtype=torch.float32)
    for g, (begin, end) in enumerate(group_rows(workload, inputs)):
        at = slice(begin, end)
        block = workload.scales == "block"
        scales = (
            a_scale[:, at] if a_scale is not None and block else a_scale,
            b_scale[g] if b_scale is not None and block else b_scale,
        )
        _product(a[at], b[g], scales, inputs.get("bias"), out[at], sums[at])
    result = _ACTIVATIONS[workload.epilogue](out)
    return Reference({"c": result}, {"c": {"sums": sums}})


def group_rows(workload: GemmWorkload, inputs: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """[first row, one behind the last) of A and C of each group."""
    if workload.grouping == "contiguous":
        ends = [int(x) for x in inputs["offsets"].tolist()]
        return list(zip([0, *ends[:-1]], ends, strict=True))
    counts = inputs["counts"].tolist()
    return [(g * workload.m, g * workload.m + int(count)) for g, count in enumerate(counts)]


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    bias: torch.Tensor | None,
    out: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Into out [m, n] and sums [m, n]: A [m, k] B [k, n] + bias, and its magnitudes. The scales as the workload has
    them, [1] or by blocks of 128."""
    (m, k), n = a.shape, b.shape[1]
    columns = max(1, min(n, _BLOCK_ELEMENTS // k))
    rows = max(1, min(m, _BLOCK_ELEMENTS // max(k, columns)))
    left_scale, right_scale = (None if s is None else s.double() for s in scales)
    for j in range(0, n, columns):
        right = b[:, j : j + columns].double()
        if right_scale is not None:
            right *= _spread(right_scale.T, k, n)[:, j : j + columns] if right_scale.ndim > 1 else right_scale
        right_abs = right.abs().float()
        add = bias[j : j + columns].double() if bias is not None else right.new_zeros(())
        for i in range(0, m, rows):
            left = a[i : i + rows].double()
            if left_scale is not None:
                scale = left_scale if left_scale.ndim == 1 else left_scale[:, i : i + rows].T
                left *= scale if scale.ndim == 1 else scale.repeat_interleave(SCALE_BLOCK, 1)[:, :k]
            block = (slice(i, i + rows), slice(j, j + columns))
            out[block] = left @ right + add
            sums[block] = left.abs().float() @ right_abs + add.abs()


def _spread(blocks: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Every element its block's value: [ceil(rows / 128), ceil(columns / 128)] -> [rows, columns]."""
    spread = blocks.repeat_interleave(SCALE_BLOCK, 0)[:rows]
    return spread.repeat_interleave(SCALE_BLOCK, 1)[:, :columns]


# --- attention ---


def _attention(workload: AttentionWorkload, inputs: Mapping[str, torch.Tensor]) -> Reference:
    heads_first = workload.layout == "bhsd"
    q, k, v = (inputs[x] if heads_first else inputs[x].transpose(1, 2) for x in "qkv")
    shape = (workload.batch, workload.heads_q, workload.seq_q)
    o = torch.empty(*shape, workload.head_dim_v, dtype=torch.float64, device=q.device)
    values, moved = torch.empty_like(o, dtype=torch.float32), torch.empty_like(o, dtype=torch.float32)
    lse = torch.empty(shape, dtype=torch.float64, device=q.device)
    lse_moved = torch.empty(shape, dtype=torch.float32, device=q.device)
    group = workload.heads_q // workload.heads_kv
    rows = max(1, _BLOCK_ELEMENTS // workload.seq_kv)
    for b in range(workload.batch):
        for h in range(workload.heads_q):
            keys, vals = k[b, h // group].double(), v[b, h // group].double()
            for i in range(0, workload.seq_q, rows):
                at = (b, h, slice(i, i + rows))
                o[at], values[at], moved[at], lse[at], lse_moved[at] = _rows(workload, q[at].double(), keys, vals, i)
    outputs, magnitudes = {"o": o}, {"o": {"values": values, "scores": moved}}
    if not heads_first:
        outputs = {"o": o.transpose(1, 2)}
        magnitudes = {"o": {"values": values.transpose(1, 2), "scores": moved.transpose(1, 2)}}
    if workload.lse:
        outputs["lse"], magnitudes["lse"] = lse, {"scores": lse_moved}
    return Reference(outputs, magnitudes)


def _rows(
    workload: AttentionWorkload, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int
) -> tuple[torch.Tensor, ...]:
    """Query rows from `first` on of one head: O [r, dv], P |V| [r, dv], its move [r, dv], LSE [r], its move [r]."""
    scores = workload.softmax_scale * (q @ k.T)
    sigma = workload.softmax_scale * (q.abs() @ k.abs().T)
    if workload.softcap:
        scores = workload.softcap * torch.tanh(scores / workload.softcap)
        sigma += workload.softcap  # tanh is computed to a few roundings of its own
    scores = scores.masked_fill(~visible_mask(workload, first, len(q), q.device), float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    # A row that sees nothing: its log-sum-exp is -inf and its output 0.
    weights = torch.exp(scores - lse.clamp_min(-1e300)[:, None])
    o = weights @ v
    variance = (weights @ (v * v) - o * o).clamp_min(0.0)
    moved = torch.sqrt((weights * sigma * sigma).sum(-1, keepdim=True) * variance)
    return o, weights @ v.abs(), moved, lse, (weights * sigma).sum(-1)


def visible_mask(workload: AttentionWorkload, first: int, rows: int, device: torch.device) -> torch.Tensor:
    """bool [rows, seq_kv]: which keys the query rows from `first` on see (bottom-right alignment)."""
    position = torch.arange(first, first + rows, device=device)[:, None] + workload.seq_kv - workload.seq_q
    key = torch.arange(workload.seq_kv, device=device)[None, :]
    mask = torch.ones(rows, workload.seq_kv, dtype=torch.bool, device=device)
    if workload.causal:
        mask &= key <= position
    if workload.window_left >= 0:
        mask &= key >= position - workload.window_left
    if workload.window_right >= 0:
        mask &= key <= position + workload.window_right
    return mask
