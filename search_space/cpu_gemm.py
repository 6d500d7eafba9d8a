"""What the CPU GEMM sketches share: what they refuse."""

from collections.abc import Iterable, Mapping
from math import prod

from search_space.cpu_model import VectorUnit, vector_unit
from search_space.dtypes import DTYPES
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs, KnobValue
from search_space.sketch import Refusal, Sketch
from search_space.target import Target
from search_space.workload import Workload

DTYPES_IN = ("float32", "bfloat16", "float16")
# TIR indexes buffers with 32 bits here.
ELEMENTS_MAX = 2**31 - 1
# Fewer columns than this are not worth a vector.
NARROWEST = 4


def converts_float16(target: Target) -> bool:
    """F16C comes with AVX2; NEON has the conversions always. Without them LLVM calls a library that is not there."""
    return target.vector_bits >= 256 or any(f in ("f16c", "neon", "asimd", "sve") for f in target.features)


def common_refusal(workload: Workload, target: Target) -> Refusal | None:
    """What no CPU GEMM sketch does: mixtures of experts, scaled float8, buffers beyond 32-bit indices."""
    assert isinstance(workload, GemmWorkload)
    if workload.groups > 1:
        return Refusal("groups", "grouped GEMM has no CPU sketch", ("1",))
    for name in ("dtype_a", "dtype_b", "dtype_out"):
        dtype = getattr(workload, name)
        if dtype not in DTYPES_IN:
            return Refusal(name, f"{dtype} has no CPU sketch", DTYPES_IN)
        if dtype == "float16" and not converts_float16(target):
            return Refusal(name, f"{target.arch} does not convert float16", ("float32", "bfloat16"))
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


def column_unit(workload: GemmWorkload, target: Target) -> VectorUnit:
    """The vector unit as columns of C can use it: half or a quarter of a register where C is narrower than one."""
    unit = vector_unit(target)
    lanes = unit.lanes
    while lanes > max(NARROWEST, workload.n):
        lanes //= 2
    return VectorUnit(lanes, unit.registers)


def is_half(dtype: str) -> bool:
    return itemsize(dtype) < 4


def gemm(workload: Workload) -> GemmWorkload:
    assert isinstance(workload, GemmWorkload)
    return workload


def fitting(knobs: tuple[Knob, ...], wanted: Mapping[str, KnobValue]) -> Knobs:
    """`wanted` moved into the domains: a number to the largest value not above it (or the smallest), others as is."""
    out: Knobs = {}
    for knob in knobs:
        value = wanted.get(knob.name, knob.values[0])
        if knob.ordered:
            below = [v for v in knob.values if int(v) <= int(value)]
            value = below[-1] if below else knob.values[0]
        out[knob.name] = value if value in knob.values else knob.values[0]
    return out


def legal_seeds(
    sketch: Sketch, workload: Workload, target: Target, wishes: Iterable[Mapping[str, KnobValue]]
) -> tuple[Knobs, ...]:
    """The wishes, fitted to the domains, that break no constraint, without repeats."""
    domains = sketch.knobs(workload, target)
    found: list[Knobs] = []
    for wish in wishes:
        knobs = fitting(domains, wish)
        if knobs not in found and sketch.violated(workload, target, knobs) is None:
            found.append(knobs)
    return tuple(found)
