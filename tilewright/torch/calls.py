"""What may be handed to a compiled kernel as it is, and who else must see a call."""

from typing import Any

import torch

from tilewright.torch.tally import Key

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_transforms = torch._C._functorch.peek_interpreter_stack
_autocast = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state


def transformed() -> str | None:
    """Why torch's own operators must run whatever is tuned; None where nothing changes what they mean."""
    if _autocast():
        return "autocast"
    return "function transform" if _transforms() is not None else None


def redefined(t: torch.Tensor) -> bool:
    """`transformed` in words that torch.compile can trace."""
    if torch.is_autocast_enabled(t.device.type):
        return True
    return not torch.compiler.is_compiling() and _transforms() is not None


def observed() -> bool:
    """Whether a dispatch mode or a tracer watches: the call must then go through torch's dispatcher."""
    return bool(_modes()) or _tracing() is not None


def unfit(*tensors: torch.Tensor) -> str | None:
    """Why a compiled kernel may not read these, as a reason to count: beside strides, which the operator looks at."""
    first = tensors[0]
    for t in tensors:
        if type(t) not in PLAIN_TYPES:
            return "tensor subclass"
        if t.layout is not torch.strided or t.is_neg() or t.is_conj():
            return "not dense"
        if t.device.type not in ("cpu", "cuda"):
            return f"device {t.device.type}"
        if t.device != first.device:
            return "several devices"
        if t.dtype not in DTYPES:
            return f"dtype {str(t.dtype).removeprefix('torch.')}"
        if t.dtype is not first.dtype:
            return "several dtypes"
    return None


def described(op: str, **tensors: Any) -> Key:
    """A call that the service's JSON has no words for, by its tensors: a="float64[6, 7]"."""
    found: dict[str, object] = {"op": op}
    for name, t in tensors.items():
        if isinstance(t, torch.Tensor):
            found[name] = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    return tuple(sorted(found.items()))


def device_of(*tensors: Any) -> str:
    return next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")


def storage(t: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """(the dense tensor that `t` is or is the transpose of, whether transposed); (None, False) for other strides."""
    if t.is_contiguous():
        return t, False
    flipped = t.transpose(-1, -2)
    return (flipped, True) if flipped.is_contiguous() else (None, False)
