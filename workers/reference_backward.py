"""Attention's gradients in float64, from what a backward kernel is given, with the magnitudes of its roundings.

With P = exp(S - lse), dP = dO V^T and delta = rowsum(dO . O): dV = P^T dO, dS = P . (dP - delta), dQ = scale dS K,
dK = scale dS^T Q (FlashAttention-2, arXiv:2307.08691, section 2.3). o and lse are inputs: their rounding is not the
kernel's. A soft cap multiplies dS by the derivative of the cap.
"""

from collections.abc import Mapping

import torch

from search_space.attention import AttentionWorkload
from workers.reference import Reference, visible_mask

_BLOCK_ELEMENTS = 1 << 23  # of one float64 block: 64 MiB
Terms = dict[str, dict[str, torch.Tensor]]


def attention_backward(workload: AttentionWorkload, inputs: Mapping[str, torch.Tensor]) -> Reference:
    """Each gradient has the terms "sums", its products in absolute values, with G = P . (|dO| |V|^T + |delta|) in dS's
    place; and "scores", how much it moves when each score s moves by u * scale * |q| |k|."""
    heads = {n: x if workload.layout == "bhsd" or n == "lse" else x.transpose(1, 2) for n, x in inputs.items()}
    outputs = {
        "d" + n: torch.zeros(heads[n].shape, dtype=torch.float64, device=heads[n].device) for n in ("q", "k", "v")
    }
    magnitudes: Terms = {
        n: {term: torch.zeros(x.shape, dtype=torch.float32, device=x.device) for term in ("sums", "scores")}
        for n, x in outputs.items()
    }
    group = workload.heads_q // workload.heads_kv
    rows = max(1, _BLOCK_ELEMENTS // workload.seq_kv)
    for b in range(workload.batch):
        for h in range(workload.heads_q):
            for i in range(0, workload.seq_q, rows):
                _add_rows(workload, heads, outputs, magnitudes, (b, h, h // group), slice(i, i + rows))
    if workload.layout == "bshd":
        outputs = {n: x.transpose(1, 2) for n, x in outputs.items()}
        magnitudes = {n: {t: x.transpose(1, 2) for t, x in terms.items()} for n, terms in magnitudes.items()}
    return Reference(outputs, magnitudes)


def _add_rows(
    workload: AttentionWorkload,
    heads: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    magnitudes: Terms,
    place: tuple[int, int, int],
    rows: slice,
) -> None:
    """Add what the query rows of one head give; `place`: batch, query head, key head."""
    b, h, g = place
    q, o, do = (heads[n][b, h, rows].double() for n in ("q", "o", "do"))
    k, v = (heads[n][b, g].double() for n in ("k", "v"))
    scale = workload.softmax_scale
    scores = scale * (q @ k.T)
    slope: torch.Tensor | float = 1.0
    if workload.softcap:
        slope = 1.0 - torch.tanh(scores / workload.softcap) ** 2
        scores = workload.softcap * torch.tanh(scores / workload.softcap)
    lse = heads["lse"][b, h, rows].double()
    seen = visible_mask(workload, rows.start, len(q), q.device) & (lse > -torch.inf)[:, None]
    weights = torch.exp((scores - lse.clamp_min(-1e300)[:, None]).masked_fill(~seen, -torch.inf))
    ds = weights * (do @ v.T - (do * o).sum(-1, keepdim=True)) * slope
    outputs["dq"][b, h, rows] += scale * (ds @ k)
    outputs["dk"][b, g] += scale * (ds.T @ q)
    outputs["dv"][b, g] += weights.T @ do
    sizes = weights * (do.abs() @ v.abs().T + (do * o).abs().sum(-1, keepdim=True)) * slope
    sigma = scale * (q.abs() @ k.abs().T)
    for term, factor in (("sums", 1.0), ("scores", sigma)):
        part, whole = sizes * factor, weights * factor
        magnitudes["dq"][term][b, h, rows] += (scale * (part @ k.abs())).float()
        magnitudes["dk"][term][b, g] += (scale * (part.T @ q.abs())).float()
        magnitudes["dv"][term][b, g] += (whole.T @ do.abs()).float()
