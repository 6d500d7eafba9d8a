"""Limits of an sm_90a multiprocessor and of the card, with their source."""

import math
from typing import Final

# CUDA C++ programming guide, technical specifications of compute capability 9.0: bytes one block can be given.
SHARED_BLOCK_BYTES: Final = 227 * 1024
# The same table: bytes of one multiprocessor that all its blocks share, 1 KiB of them reserved for each block.
SHARED_SM_BYTES: Final = 228 * 1024
SHARED_RESERVED_BYTES: Final = 1024
REGISTERS_SM: Final = 65536
REGISTERS_THREAD: Final = 255
# TMA (cuTensorMapEncodeTiled): rows of a global tensor are multiples of 16 bytes, a box has at most 256 a side.
TMA_ROW_BYTES: Final = 16
TMA_BOX: Final = 256
# Head dims of the attention kernels: rows that TMA can read, as wide as one wgmma multiplies.
HEAD_DIMS: Final = tuple(range(TMA_ROW_BYTES // 2, 257, TMA_ROW_BYTES // 2))
# Blocks of a portable cluster.
CLUSTER_MAX: Final = 8
# 32-bit indices address what plain stores write.
INDEX_MAX: Final = 2**31 - 1

# Clusters of each size that were resident at once with one block a multiprocessor, read on an H200 of 132
# multiprocessors with cuOccupancyMaxActiveClusters: its GPCs have unequal numbers of multiprocessors, so large
# clusters leave some of them without work.
_RESIDENT_OF_132: Final = {1: 132, 2: 66, 4: 30, 8: 15}


def resident_clusters(cluster: int, multiprocessors: int, blocks_per_sm: int = 1) -> int:
    """Clusters that can run at once. Unknown sizes take the next larger known one's blocks."""
    known = min(s for s in _RESIDENT_OF_132 if s >= cluster)
    share = _RESIDENT_OF_132[known] * known / 132
    return max(1, math.floor(multiprocessors * share / cluster)) * blocks_per_sm


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)
