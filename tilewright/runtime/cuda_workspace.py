"""Workspaces of a CUDA kernel: one for each stream, because launches on one stream run after each other."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.runtime import cuda_driver as cuda

_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


def capture_of(stream: int) -> int:
    """Id of the CUDA graph that the stream is being captured into, 0 where it is not."""
    status, identity = ctypes.c_int(), ctypes.c_uint64()
    code = cuda.driver().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(identity), None, None, None
    )
    cuda.check("cuStreamGetCaptureInfo", code)
    return identity.value if status.value == _CAPTURING else 0


class Workspaces:
    """Hands out the workspaces of one kernel by (device, stream, capture).

    A kernel leaves flags and counters as it found them, so launches that follow each other share a workspace. A graph
    gets one of its own: it may be replayed on any stream. They live as long as the kernel.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._owned: dict[tuple[int, int, int], dict[str, tuple[object, int]]] = {}

    def allocator(self, device: int, stream: int, capture: int) -> Callable[[str, int, bool], tuple[object, int]]:
        known = self._owned.setdefault((device, stream, capture), {})

        def allocate(name: str, nbytes: int, zero: bool) -> tuple[object, int]:
            if name not in known:
                known[name] = self.fresh(device, nbytes, zero)
            return known[name]

        return allocate

    def fresh(self, device: int, nbytes: int, zero: bool) -> tuple[object, int]:
        make = self._torch.zeros if zero else self._torch.empty
        owner = make(nbytes, dtype=self._torch.uint8, device=f"cuda:{device}")
        return owner, owner.data_ptr()

    def held(self) -> Mapping[tuple[int, int, int], int]:
        """How many workspaces each (device, stream, capture) holds."""
        return {place: len(spaces) for place, spaces in self._owned.items()}
