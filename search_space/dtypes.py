"""Canonical element types and the accuracy each can carry."""

from dataclasses import dataclass

from search_space.errors import InvalidField


@dataclass(frozen=True)
class DType:
    """`itemsize` in bytes; `epsilon` is the unit roundoff u = 2^-p (IEEE 754 precision p, round to nearest)."""

    name: str
    itemsize: int
    epsilon: float


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float64", 8, 2.0**-53),
        DType("float32", 4, 2.0**-24),
        DType("float16", 2, 2.0**-11),
        DType("bfloat16", 2, 2.0**-8),
        DType("float8_e4m3", 1, 2.0**-4),
    )
}

# float64 is for references only: no workload may ask for it.
WORKLOAD_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3")

ALIASES = {
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
}


def canonical_dtype(value: object, field: str) -> str:
    """The canonical name of `value`; InvalidField naming `field` if it is none."""
    allowed = (*WORKLOAD_DTYPES, *ALIASES)
    if not isinstance(value, str):
        raise InvalidField(field, f"must be a string, not {type(value).__name__}", allowed)
    name = ALIASES.get(value, value)
    if name not in WORKLOAD_DTYPES:
        raise InvalidField(field, f"unknown dtype {value!r}", allowed)
    return name
