"""Giving freed memory back to the system."""

import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Return the free pages of the heap to the system; nothing where the C library has no such call.

    glibc keeps what was freed below its (growing, up to 32 MiB) mmap threshold. The temporaries of a check are that
    large and of every size, so that a process that checks candidates for days would hold gigabytes of free pages.
    """
    release = _malloc_trim()
    if release is not None:
        release(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = (ctypes.c_size_t,), ctypes.c_int
    return function
