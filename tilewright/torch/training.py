"""attention with gradients: a tuned forward that keeps its log-sum-exp, and a tuned backward, or neither."""

from collections.abc import Callable
from typing import Any

import torch

from tilewright.runtime.kernel import Kernel
from tilewright.torch import calls
from tilewright.torch.attention import ALIGNED, Options, Run, layouts_of, signature_of, workload_key
from tilewright.torch.table import TABLE, Plan
from tilewright.torch.tally import Tally


def differentiable(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> torch.Tensor | None:
    """O with its gradient attached; None where torch is to run, counted by what was missed: the forward workload with
    `lse`, the backward one, or both. Backward is deterministic where torch.use_deterministic_algorithms asks for it."""
    plans = TABLE.plans
    exact = torch.are_deterministic_algorithms_enabled()
    signature = signature_of(q, k, v, (options, "training", exact))
    plan = plans.get(signature) if signature else None
    if plan is None:
        plan = _new_plan(q, k, v, options, exact)
        if signature:
            TABLE.keep(plans, signature, plan)
    if plan.run is None:
        for tally in (plan.tally, *plan.more):
            tally.count()
        return None
    found: torch.Tensor | None = plan.run(q, k, v)
    return found


def _new_plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, exact: bool) -> Plan[Run]:
    device = calls.device_of(q)
    layouts = layouts_of(q, k, v)
    if isinstance(layouts, str):
        key = calls.described("attention", q=q, k=k, v=v)
        return Plan(device, key, TABLE.tallies.of(device, key, layouts))
    missed: tuple[Tally, ...] = ()
    for layout in layouts:
        forward, tally = TABLE.find(device, workload_key(q, k, v, options, layout, lse=True))
        fields: dict[str, object] = {"pass": "backward", **({"deterministic": True} if exact else {})}
        backward, tally_back = TABLE.find(device, workload_key(q, k, v, options, layout, **fields))
        if forward is not None and backward is not None:
            run = _bound(forward, backward, q, layout == "bshd", tally, tally_back)
            return Plan(device, tally.key, tally, run)
        lacking = [t for kernel, t in ((forward, tally), (backward, tally_back)) if kernel is None]
        missed = missed or tuple(lacking)
    return Plan(device, missed[0].key, missed[0], None, missed[1:])


def _bound(
    forward: Kernel, backward: Kernel, q: torch.Tensor, by_rows: bool, tally: Tally, tally_back: Tally
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]:
    """Kernels take tensors as they lie in memory: [batch, heads, seq, d], or `by_rows` [batch, seq, heads, d]."""

    def stored(t: torch.Tensor) -> torch.Tensor:
        return (t.transpose(1, 2) if by_rows else t).contiguous()

    class Tuned(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            operands = [stored(t.detach()) for t in (q, k, v)]
            o, lse = forward(*operands)
            tally.count()
            ctx.save_for_backward(q, k, v, o, lse)
            return o.transpose(1, 2) if by_rows else o

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, ...]:
            q, k, v, o, lse = ctx.saved_tensors
            found = backward(*(stored(t.detach()) for t in (q, k, v)), o, lse, stored(do))
            tally_back.count()
            return tuple(t.transpose(1, 2) for t in found) if by_rows else tuple(found)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & ALIGNED and q.is_cuda:
            TABLE.refused("cuda", tally.key, "alignment")
            return None
        found: torch.Tensor = Tuned.apply(q, k, v)
        return found

    return run
