"""Buffers with guarded memory on both sides, so that a kernel that strays is found out."""

import ctypes
import mmap

from search_space.workload import Operand
from tuner.outcome import Outcome
from workers.bench import Rejected

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

PAGE = mmap.PAGESIZE
ALIGNMENT = 64  # of the data: a cache line, and the widest vector register
_CANARY = 0xA5
_POISON = 0xFF  # every byte set is a NaN in float64, float32, float16, bfloat16 and float8_e4m3
_PROT_NONE = 0
_EDGE = 256 * PAGE  # no access here; costs address space only


class GuardedBuffer:
    """Memory of one operand: [no access | canary | data | canary | no access], each guard at least a page.

    Just outside the data lie canary bytes, which `damaged` compares; further out the pages cannot be touched, so a
    far access ends the process with SIGSEGV. An input (`written` False) ends right before a page without access, so
    that reading past it is a fault too; `protect` then makes it read-only, so that during every call, timed ones too,
    a kernel that changes its inputs ends with SIGSEGV. The data starts on a multiple of 64 bytes.
    """

    def __init__(self, operand: Operand, written: bool) -> None:
        self.operand = operand
        self.nbytes = operand.nbytes
        span = -(-max(self.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        front = PAGE + (-span) % PAGE
        self._body = front + span + (PAGE if written else 0)
        self._total = self._body + 2 * _EDGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, self._total, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no {self._total} bytes for operand {operand.name}")
        self._base: int = base
        for edge in (base, base + _EDGE + self._body):
            if _libc.mprotect(edge, _EDGE, _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect of a guard page failed")
        self.address: int = base + _EDGE + front
        self._after = self._body - front - self.nbytes
        self._canary = bytes([_CANARY]) * max(front, self._after)
        self._front = front
        self.restore_guards()

    def restore_guards(self) -> None:
        ctypes.memset(self.address - self._front, _CANARY, self._front)
        ctypes.memset(self.address + self.nbytes, _CANARY, self._after)

    def poison(self) -> None:
        """Fill the data with NaN."""
        ctypes.memset(self.address, _POISON, self.nbytes)

    def write(self, data: bytes | memoryview) -> None:
        if len(data) != self.nbytes:
            raise ValueError(f"operand {self.operand.name} takes {self.nbytes} bytes, got {len(data)}")
        self.view()[:] = data

    def view(self) -> memoryview:
        """The data as bytes, shared with the buffer and valid as long as it."""
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.address)).cast("B")

    def damaged(self) -> str | None:
        """Which side was written outside the data, or None."""
        if _libc.memcmp(self.address - self._front, self._canary, self._front):
            return "before"
        if _libc.memcmp(self.address + self.nbytes, self._canary, self._after):
            return "after"
        return None

    def protect(self) -> None:
        """From here on the data may only be read."""
        if _libc.mprotect(self._base + _EDGE, self._body, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), f"operand {self.operand.name} could not be made read-only")

    def verify(self) -> None:
        """Rejected (WRONG_ANSWER) when a guard was written; the guard is then whole again."""
        side = self.damaged()
        if side is not None:
            self.restore_guards()
            raise Rejected(Outcome.WRONG_ANSWER, f"wrote {side} the memory of operand {self.operand.name}")

    def free(self) -> None:
        if self._base:
            _libc.munmap(self._base, self._total)
            self._base = 0
