"""Arithmetic of a multistage cp.async + FFMA tile in float32: shared memory, registers, threads. No tvm."""

from dataclasses import dataclass
from typing import Final

REGISTERS_SM: Final = 65536
QUAD: Final = 4  # floats of one 16-byte access
# A warp's threads: 4 along m, 8 along n, so that reading operands from shared memory takes one pass.
LANES_M, LANES_N = 4, 8


@dataclass(frozen=True)
class SimtTile:
    """One block's tile of C; each thread owns thread_m x thread_n of it, in pieces of 4 x 4.

    Operands lie in shared memory with k outermost, whatever their layout: an operand whose contiguous axis is k is
    transposed by its copies of 4 bytes, and its rows there are `pad` floats longer, which halves bank conflicts.
    `quads_a`, `quads_b`: copies of 16 bytes, where the contiguous axis is m or n and its rows are aligned.
    """

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    stages: int
    blocks_per_sm: int
    trans_a: bool
    trans_b: bool
    quads_a: bool
    quads_b: bool
    quads_c: bool
    fragment_sets: int
    epilogue: str = "none"

    @property
    def warps_m(self) -> int:
        return self.block_m // (LANES_M * self.thread_m)

    @property
    def warps_n(self) -> int:
        return self.block_n // (LANES_N * self.thread_n)

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def pitch_a(self) -> int:
        """Floats between two values of k in shared memory."""
        return self.block_m + (0 if self.trans_a else QUAD)

    @property
    def pitch_b(self) -> int:
        return self.block_n + (QUAD if self.trans_b else 0)

    @property
    def accumulators(self) -> int:
        return self.thread_m * self.thread_n

    @property
    def fragments(self) -> int:
        """Floats of the operand fragments; with two sets, the next are read while these are multiplied."""
        return self.fragment_sets * (self.thread_m + self.thread_n)

    @property
    def copies(self) -> int:
        """cp.async instructions of a thread for one stage: each keeps an address."""
        a = -(-self.block_m * self.block_k // (self.threads * (QUAD if self.quads_a else 1)))
        b = -(-self.block_n * self.block_k // (self.threads * (QUAD if self.quads_b else 1)))
        return a + b

    def shared_bytes(self) -> int:
        return self.stages * self.block_k * (self.pitch_a + self.pitch_b) * 4

    @property
    def register_limit(self) -> int:
        return min(255, REGISTERS_SM // (self.threads * self.blocks_per_sm) // 8 * 8)
