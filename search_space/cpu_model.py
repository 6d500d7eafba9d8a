"""What every CPU sketch asks of the machine and of its own tiling: registers, idle cores, work done twice."""

from dataclasses import dataclass

from search_space.target import Target


@dataclass(frozen=True)
class VectorUnit:
    """Float32 lanes of one vector register, and how many registers there are."""

    lanes: int
    registers: int


def vector_unit(target: Target) -> VectorUnit:
    """AVX-512 has 32 registers of 16 lanes, AVX2 16 of 8, NEON 32 of 4, SSE 16 of 4."""
    bits = max(128, target.vector_bits)
    wide_file = bits >= 512 or any(f in ("neon", "asimd", "sve") for f in target.features)
    return VectorUnit(bits // 32, 32 if wide_file else 16)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def grain_waste(grains: int, cores: int) -> float:
    """Share of core time lost when `grains` equal pieces are dealt to `cores` cores: 1 - grains / (rounds * cores)."""
    rounds = ceil_div(grains, max(1, cores))
    return 1.0 - grains / (rounds * max(1, cores))


def overlap_waste(extent: int, tile: int) -> float:
    """Share of the computed elements that a last tile beyond the edge (shifted back, or padded) adds for nothing."""
    return 1.0 - extent / (ceil_div(extent, tile) * tile)


def at_most(values: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The values up to `limit`, and `limit` itself where it lies below the largest: always at least one."""
    kept = {v for v in values if v <= limit}
    if limit < max(values):
        kept.add(limit)
    return tuple(sorted(kept))
