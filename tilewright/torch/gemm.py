"""matmul and linear: tuned where the shape was tuned, torch's own kernel otherwise.

A call that nothing watches goes from here straight to the kernel, by a plan kept for its signature: dispatching a
Python operator costs more host time than the launch. Every other call goes through the operators of `library`.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as functional

from tilewright.runtime.kernel import Kernel
from tilewright.torch import calls
from tilewright.torch.constants import with_packed
from tilewright.torch.table import TABLE, Plan, key_of
from tilewright.torch.tally import Key, Tally

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
}
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor | None]
_ALIGNED = 15  # mask of an address: CUDA kernels read 16 bytes at once


def matmul(a: torch.Tensor, b: torch.Tensor, b_constant: bool = False) -> torch.Tensor:
    """a [..., m, k] @ b [k, n] or [batch, k, n], as torch.matmul. A transposed view counts as a transposed operand.

    `b_constant` promises that b holds weights, which no kernel of the same stream writes: schedules tuned with
    `b_constant` then serve the call, and b is packed once where they want it so (written in place it is packed again).
    """
    if torch.compiler.is_compiling() or calls.observed():
        return _traced_matmul(a, b, b_constant)
    plan = plan_of(a, b, None, None, b_constant, False)
    if plan.run is None:
        return torch.matmul(a, b)
    if (why := calls.transformed()) is not None:
        TABLE.refused(plan.device, plan.key, why)
        return torch.matmul(a, b)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return torch.ops.tilewright.matmul(a, b, b_constant)
    found = plan.run(a, b, None)
    return torch.matmul(a, b) if found is None else found


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    weight_constant: bool = False,
) -> torch.Tensor:
    """activation(x [..., k] @ weight [n, k].T + bias [n]); `activation`: None, gelu, relu or silu.

    `weight_constant`: as `b_constant` of `matmul`. Tuned kernels have an activation only together with a bias. With an
    activation, what needs gradients runs torch's operators: they keep what the activation's own gradient needs.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    operands = [x, weight] if bias is None else [x, weight, bias]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
    if torch.compiler.is_compiling() or calls.observed():
        return _traced_linear(x, weight, bias, activation, weight_constant, wanted)
    plan = plan_of(x, weight, bias, activation, weight_constant, True)
    if plan.run is None:
        return torch_linear(x, weight, bias, activation)
    if (why := calls.transformed() or ("gradient" if wanted and activation else None)) is not None:
        TABLE.refused(plan.device, plan.key, why)
        return torch_linear(x, weight, bias, activation)
    if wanted:
        return torch.ops.tilewright.linear(x, weight, bias, activation, weight_constant)
    found = plan.run(x, weight, bias)
    return torch_linear(x, weight, bias, activation) if found is None else found


def torch_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor:
    y = functional.linear(x, weight, bias)
    return y if activation is None else ACTIVATIONS[activation](y)


def run_tuned(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, constant: bool, flipped: bool
) -> torch.Tensor | None:
    """The tuned kernel's answer, or None where torch is to run; counted either way. `flipped`: b is given as [n, k]."""
    plan = plan_of(a, b, bias, activation, constant, flipped)
    return None if plan.run is None else plan.run(a, b, bias)


def _fits_operator(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The forms of `matmul` that the registered operator (its gradient, its fake) is written for."""
    return a.dim() >= 2 and (b.dim() == 2 or (a.dim() == b.dim() == 3 and bool(a.shape[0] == b.shape[0])))


def _traced_matmul(a: torch.Tensor, b: torch.Tensor, b_constant: bool) -> torch.Tensor:
    if not _fits_operator(a, b) or calls.redefined(a):
        return torch.matmul(a, b)
    return torch.ops.tilewright.matmul(a, b, b_constant)


def _traced_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    constant: bool,
    wanted: bool,
) -> torch.Tensor:
    odd = x.dim() < 2 or weight.dim() != 2 or calls.redefined(x)
    if odd or (activation is not None and (wanted or bias is None)):
        return torch_linear(x, weight, bias, activation)
    return torch.ops.tilewright.linear(x, weight, bias, activation, constant)


def plan_of(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, constant: bool, flipped: bool
) -> Plan[Run]:
    """The plan of the call's signature. Where torch is to run the call has been counted, and `run` is None."""
    plans = TABLE.plans
    try:
        if bias is None:
            signature: tuple[object, ...] = (
                flipped, constant, a.shape, a.stride(), a.dtype, a.device, b.shape, b.stride(), b.dtype, b.device,
                type(a), type(b),
            )  # fmt: skip
        else:
            signature = (
                flipped, activation, constant, a.shape, a.stride(), a.dtype, a.device, b.shape, b.stride(), b.dtype,
                b.device, type(a), type(b), bias.shape, bias.stride(), bias.dtype, bias.device, type(bias),
            )  # fmt: skip
        plan = None if a.is_neg() or b.is_neg() else plans.get(signature)
    except (AttributeError, RuntimeError, TypeError):  # no tensor, or one without strides
        signature, plan = (), None
    if plan is None:
        plan = _new_plan(a, b, bias, activation, constant, flipped)
        if signature and not (a.is_neg() or b.is_neg()):
            TABLE.keep(plans, signature, plan)
    if plan.run is None:
        plan.tally.count()
    return plan


def _new_plan(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, constant: bool, flipped: bool
) -> Plan[Run]:
    device = calls.device_of(a, b)
    tensors = (a, b) if bias is None else (a, b, bias)
    why = "not a tensor" if not all(isinstance(t, torch.Tensor) for t in tensors) else calls.unfit(*tensors)
    if why is None and flipped:
        why, b = (None, b.t()) if b.dim() == 2 else (f"weight of {b.dim()} dimensions", b)
    why = why or _misshapen(a, b, bias, activation)
    if why is not None:
        key = calls.described("gemm", a=a, b=b, bias=bias)
        return Plan(device, key, TABLE.tallies.of(device, key, why))
    keys = _keys(a, b, bias, activation, constant)
    kernel, tally = TABLE.find(device, *keys)
    if kernel is None:
        return Plan(device, tally.key, tally)
    shape = (*a.shape[:-1], b.shape[-1])
    if device == "cuda":
        return Plan(device, tally.key, tally, _cuda_run(kernel, a.get_device(), shape, tally))
    return Plan(device, tally.key, tally, _cpu_run(kernel, a, b, flipped, shape, tally))


def _misshapen(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> str | None:
    if a.dim() < 2 or b.dim() not in (2, 3):
        return f"dimensions {a.dim()} and {b.dim()}"
    if b.dim() == 3 and (a.dim() != 3 or a.shape[0] != b.shape[0]):
        return "broadcast batch"
    if a.shape[-1] != b.shape[-2]:
        return "shapes"
    stored_a, trans_a = calls.storage(a)
    if stored_a is None or calls.storage(b)[0] is None or (trans_a and a.dim() > 2 and b.dim() == 2):
        return "strides"
    if 0 in a.shape or 0 in b.shape:
        return "empty"
    if bias is not None and (bias.shape != (b.shape[-1],) or not bias.is_contiguous()):
        return "bias"
    return "activation without a bias" if activation is not None and bias is None else None


def _keys(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, constant: bool
) -> tuple[Key, ...]:
    """As the workload's canonical JSON: fields at their default are left out. A constant B is also just a B."""
    batch = b.shape[0] if b.dim() == 3 else 1
    m = a.shape[-2] if b.dim() == 3 else math.prod(a.shape[:-1])
    dtype = calls.DTYPES[a.dtype]
    fields: dict[str, object] = {"op": "gemm", "m": m, "n": b.shape[-1], "k": b.shape[-2]}
    fields.update(dtype_a=dtype, dtype_b=dtype, dtype_out=dtype)
    epilogue = "none" if bias is None else "bias" if activation is None else f"bias+{activation}"
    optional = {
        "batch": (batch, 1),
        "trans_a": (calls.storage(a)[1], False),
        "trans_b": (calls.storage(b)[1], False),
        "epilogue": (epilogue, "none"),
    }
    fields.update({name: value for name, (value, default) in optional.items() if value != default})
    plain = key_of(fields)
    return (key_of({**fields, "b_constant": True}), plain) if constant else (plain,)


def _cuda_run(kernel: Kernel, device: int, shape: tuple[int, ...], tally: Tally) -> Run:
    """Every operand is dense where it lies, so that addresses are all the kernel needs."""
    from tilewright.runtime.cuda import CudaKernel

    assert isinstance(kernel, CudaKernel)
    launch, count = kernel.run, tally.count

    def run(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        pa, pb = a.data_ptr(), b.data_ptr()
        extra = () if bias is None else (bias.data_ptr(),)
        if (pa | pb | (extra[0] if extra else 0)) & _ALIGNED:
            TABLE.refused("cuda", tally.key, "alignment")
            return None
        out = a.new_empty(shape)
        launch(device, (pa, pb, *extra, out.data_ptr()))
        count()
        return out

    return run


def _cpu_run(
    kernel: Kernel, a: torch.Tensor, b: torch.Tensor, flipped: bool, shape: tuple[int, ...], tally: Tally
) -> Run:
    """`b` as the product has it, [k, n]; the calls give it as [n, k] where `flipped`."""
    trans_a, trans_b = calls.storage(a)[1], calls.storage(b)[1]
    k, n = b.shape[-2:]
    single = b.dim() == 2 or b.shape[0] == 1  # the kernel's operands have no batch then

    def run(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        left = a.detach().transpose(-1, -2) if trans_a else a.detach()
        right = b.detach() if trans_b == flipped else b.detach().transpose(-1, -2)
        if single:
            left = left.reshape((k, -1) if trans_a else (-1, k))
            right = right.reshape((n, k) if trans_b else (k, n))
        operands = (left, right) if bias is None else (left, right, bias.detach())
        out: torch.Tensor = kernel(*with_packed(kernel, operands))
        tally.count()
        return out if out.shape == shape else out.reshape(shape)

    return run
