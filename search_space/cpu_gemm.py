"""What the CPU GEMM sketches share: what they refuse, the vector unit as they see it, and feature names."""

from dataclasses import dataclass
from math import ceil, prod

from search_space.dtypes import DTYPES
from search_space.gemm import GemmWorkload
from search_space.sketch import Refusal, Sketch
from search_space.target import Target
from search_space.workload import Workload

DTYPES_IN = ("float32", "bfloat16", "float16")
# TIR indexes buffers with 32 bits here.
ELEMENTS_MAX = 2**31 - 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


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


def common_refusal(workload: Workload, target: Target) -> Refusal | None:
    """What no CPU GEMM sketch does: mixtures of experts, scaled float8, buffers beyond 32-bit indices."""
    assert isinstance(workload, GemmWorkload)
    if workload.groups > 1:
        return Refusal("groups", "grouped GEMM has no CPU sketch", ("1",))
    for name in ("dtype_a", "dtype_b", "dtype_out"):
        dtype = getattr(workload, name)
        if dtype not in DTYPES_IN:
            return Refusal(name, f"{dtype} has no CPU sketch", DTYPES_IN)
    for operand in (*workload.inputs(), *workload.outputs()):
        if prod(operand.shape) > ELEMENTS_MAX:
            return Refusal(operand.name, f"{operand.name} has more than {ELEMENTS_MAX} elements")
    return None


class CpuGemmSketch(Sketch):
    """Base of the CPU GEMM sketches: `structure_refusal` says what this structure cannot do."""

    op = "gemm"
    target_kind = "cpu"

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        common = common_refusal(workload, target)
        if common is not None:
            return common
        assert isinstance(workload, GemmWorkload)
        return self.structure_refusal(workload, target)

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        return None


def itemsize(dtype: str) -> int:
    return DTYPES[dtype].itemsize


def is_half(dtype: str) -> bool:
    return itemsize(dtype) < 4


def grain_waste(grains: int, cores: int) -> float:
    """Share of core time lost when `grains` equal pieces are dealt to `cores` cores: 1 - grains / (rounds * cores)."""
    rounds = ceil(grains / max(1, cores))
    return 1.0 - grains / (rounds * max(1, cores))


def overlap_waste(extent: int, tile: int) -> float:
    """Share of the computed elements that a shifted last tile computes twice."""
    computed = ceil_div(extent, tile) * tile
    return 1.0 - extent / computed


def at_most(values: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The values up to `limit`, and `limit` itself where it lies below the largest: always at least one."""
    kept = {v for v in values if v <= limit}
    if limit < max(values):
        kept.add(limit)
    return tuple(sorted(kept))
