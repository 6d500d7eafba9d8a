"""Arithmetic of a multistage cp.async + ldmatrix + mma.sync tile: shared memory, registers, copies. No tvm."""

from dataclasses import dataclass
from typing import Any, Final

KIB: Final = 1024
# CUDA C++ programming guide, technical specifications by compute capability: KiB of shared memory that one block can
# be given, that all blocks of a multiprocessor share (1 KiB reserved for each), and threads resident there.
SHARED_BLOCK: Final = {"sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_90a": 227}
SHARED_SM: Final = {"sm_80": 164, "sm_86": 100, "sm_87": 164, "sm_89": 100, "sm_90": 228, "sm_90a": 228}
THREADS_SM: Final = {"sm_80": 2048, "sm_86": 1536, "sm_87": 1536, "sm_89": 1536, "sm_90": 2048, "sm_90a": 2048}
REGISTERS_SM: Final = 65536
UNIT: Final = 8  # elements of 16 bits in what ldmatrix reads at once: 16 bytes


def permuted(units: int, unit: Any, row8: Any) -> Any:
    """Where 16-byte unit `unit` of a row of `units` lies; `row8` is the row modulo 8. Integers or TVM expressions.

    The eight rows that an ldmatrix reads at one column then lie in eight different groups of four banks.
    """
    return unit ^ row8 if units % 8 == 0 else unit ^ (row8 // (8 // units))


@dataclass(frozen=True)
class MmaTile:
    """One block's tile of C, computed by warps_m x warps_n warps.

    `vector_a`, `vector_b`: elements of one copy from global memory (8, 4, 2: cp.async of 16, 8, 4 bytes, zero-filled
    past the edge; 1: plain loads, through registers), as the alignment of the operand's rows allows.
    `store`: "direct" (pairs of columns from the fragments) or "staged" (through shared memory, 16 bytes at a time).
    """

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    blocks_per_sm: int
    store: str
    trans_a: bool
    trans_b: bool
    vector_a: int
    vector_b: int
    even_n: bool
    dtype: str
    epilogue: str = "none"

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def warp_m(self) -> int:
        """Rows of C of one warp."""
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        return self.block_n // self.warps_n

    @property
    def accumulators(self) -> int:
        """float32 accumulators of a thread."""
        return self.warp_m * self.warp_n // 32

    @property
    def fragments(self) -> int:
        """32-bit registers of two sets of operand fragments."""
        return 2 * (self.warp_m // 16 * 4 + self.warp_n // 8 * 2)

    @property
    def copied_a(self) -> tuple[int, int]:
        """(rows, columns) of A's tile as it lies in memory and in shared memory."""
        return (self.block_k, self.block_m) if self.trans_a else (self.block_m, self.block_k)

    @property
    def copied_b(self) -> tuple[int, int]:
        return (self.block_n, self.block_k) if self.trans_b else (self.block_k, self.block_n)

    @property
    def held(self) -> int:
        """Registers that hold elements on their way from plain loads to shared memory."""
        units = sum(
            -(-rows * cols // (UNIT * self.threads))
            for (rows, cols), vector in ((self.copied_a, self.vector_a), (self.copied_b, self.vector_b))
            if vector == 1
        )
        return UNIT * units

    @property
    def stage_bytes(self) -> int:
        return 2 * self.block_k * (self.block_m + self.block_n)

    def shared_bytes(self) -> int:
        """The stages; a staged store reuses them."""
        return self.stages * self.stage_bytes

    @property
    def register_limit(self) -> int:
        """What the launch bounds leave a thread."""
        return min(255, REGISTERS_SM // (self.threads * self.blocks_per_sm) // 8 * 8)
