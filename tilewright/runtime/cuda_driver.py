"""The few calls of the CUDA driver that a cubin needs, through ctypes (CUDA driver API, version 12 and later)."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

_DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "float8_e4m3": 0}  # CUtensorMapDataType
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle, by bytes
_L2_PROMOTION_256B = 3
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
TENSOR_MAP_BYTES = 128
_TENSOR_MAP_ALIGNMENT = 64


INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has made none current yet


class CudaError(RuntimeError):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: CUDA error {code} ({text})")
        self.code = code


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *[(name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")],
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def driver() -> Any:
    """libcuda; RuntimeError saying what is missing when it is not there."""
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("the CUDA driver library (libcuda.so.1) was not found: install the NVIDIA driver")


def check(call: str, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(call, code, (text.value or b"unknown").decode())


class Module:
    """A cubin loaded into the current context."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = ctypes.c_void_p()
        check("cuModuleLoadData", driver().cuModuleLoadData(ctypes.byref(self._handle), cubin))

    def function(self, symbol: str, shared_bytes: int) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        check(
            f"cuModuleGetFunction({symbol})",
            driver().cuModuleGetFunction(ctypes.byref(function), self._handle, symbol.encode()),
        )
        if shared_bytes:
            code = driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes)
            check(f"{shared_bytes} bytes of shared memory", code)
        return function

    def unload(self) -> None:
        check("cuModuleUnload", driver().cuModuleUnload(self._handle))


def launch_config(grid: int, block: int, shared: int, cluster: int, dependent: bool) -> LaunchConfig:
    """`dependent`: programmatic dependent launch, the kernel may begin before its predecessor ends."""
    attributes = (LaunchAttribute * 2)()
    count = 0
    if cluster > 1:
        attributes[count].id = _CLUSTER_DIMENSION
        for i, extent in enumerate((cluster, 1, 1)):
            attributes[count].value[i] = extent
        count += 1
    if dependent:
        attributes[count].id = _PROGRAMMATIC_SERIALIZATION
        attributes[count].value[0] = 1
        count += 1
    return LaunchConfig(grid, 1, 1, block, 1, 1, shared, None, attributes, count)


def max_active_clusters(function: ctypes.c_void_p, config: LaunchConfig) -> int:
    count = ctypes.c_int()
    code = driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), function, ctypes.byref(config))
    check("cuOccupancyMaxActiveClusters", code)
    return count.value


def tensor_map(
    dtype: str, address: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
) -> tuple[Any, int]:
    """(owner, address of the 128-byte CUtensorMap). Innermost dimension first; strides in bytes of dims 1 onwards."""
    rank = len(dims)
    raw = (ctypes.c_uint8 * (TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT))()
    start = ctypes.addressof(raw)
    at = -(-start // _TENSOR_MAP_ALIGNMENT) * _TENSOR_MAP_ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        _DTYPES[dtype],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * max(1, rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*([1] * rank)),
        0,
        _SWIZZLES[swizzle],
        _L2_PROMOTION_256B,
        0,
    )
    check(f"cuTensorMapEncodeTiled(dims {list(dims)}, strides {list(strides)}, box {list(box)})", code)
    return raw, at
