"""Freed pages go back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from workers import heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
blocks = [libc.malloc(100_000) for _ in range(2000)]  # below the mmap threshold: from the heap
for block in blocks:
    ctypes.memset(block, 1, 100_000)
full = resident()
for block in blocks[:-1]:  # the last one holds the top of the heap
    libc.free(block)
kept = resident()
heap.trim()
print(full, kept, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the resident size is read from /proc")
def test_free_pages_below_a_block_in_use_are_given_back():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    full, kept, trimmed = map(int, done.stdout.split())
    assert kept > full - 50_000_000, "glibc kept the pages by itself"
    assert trimmed < full - 150_000_000
