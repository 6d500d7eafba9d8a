"""Users' kernels for test_peers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def right(workload: Mapping[str, object], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Callable[[], None]:
    a, b = inputs
    return lambda: torch.matmul(a, b, out=outputs[0])


def wrong(workload: Mapping[str, object], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Callable[[], Any]:
    a, b = inputs
    return lambda: (a @ b).mul_(1.001)


def none(workload: Mapping[str, object], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """Has no kernel for anything."""
