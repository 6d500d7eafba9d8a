"""Vectors of one machine register in TIR, and the functions of softmax built from operations that LLVM vectorises.

TIR's own exp and tanh become one libm call per lane; the polynomials here cost about 14 instructions a vector.
Everything is emitted through TVM's IRBuilder: a function here must be called inside a PrimFunc frame.
"""

import math

import numpy as np
from tvm.script.ir_builder import tirx as T
from tvm.tirx import Shuffle

# 1.5 * 2^23: adding it rounds a float32 to an integer, left in the low bits of the mantissa.
_ROUND = 12582912.0
LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


def _exp2_coefficients(degree: int) -> list[float]:
    """c[0..degree] of 2^f on [-0.5, 0.5], interpolated at Chebyshev nodes and weighted to keep c[0] = 1 exactly."""
    nodes = 0.5 * np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    powers = np.stack([nodes**p for p in range(1, degree + 1)], axis=1)
    rest, *_ = np.linalg.lstsq(powers, np.exp2(nodes) - 1.0, rcond=None)
    return [1.0, *map(float, rest)]


_EXP2 = _exp2_coefficients(6)


def f32(value: float, lanes: int = 1):
    """A float32 constant, the same in every lane."""
    return T.Broadcast(T.float32(value), lanes) if lanes > 1 else T.float32(value)


def splat(value, lanes: int):
    """A scalar in every lane."""
    return T.Broadcast(value, lanes) if lanes > 1 else value


def at(offset, lanes: int):
    """The index of `lanes` consecutive elements from `offset` on."""
    return T.Ramp(offset, 1, lanes) if lanes > 1 else offset


def load(buffer, offset, lanes: int):
    """float32 lanes from a flat buffer of float32, float16, or the bits of bfloat16 (uint16).

    bfloat16 is widened here, by a shift: TVM's own legalisation takes the bits for an integer where a cast is bound.
    """
    value, dtype = buffer[at(offset, lanes)], str(buffer.dtype)
    if dtype == "uint16":
        bits = T.shift_left(T.cast(value, _typed("uint32", lanes)), splat(T.uint32(16), lanes))
        return T.reinterpret(_typed("float32", lanes), bits)
    return value if dtype == "float32" else T.cast(value, _typed("float32", lanes))


def store(buffer, offset, value, lanes: int) -> None:
    """float32 lanes into such a buffer, rounded to nearest even."""
    dtype = str(buffer.dtype)
    if dtype == "uint16":
        bits = T.Bind(T.reinterpret(_typed("uint32", lanes), value))
        last = T.bitwise_and(T.shift_right(bits, splat(T.uint32(16), lanes)), splat(T.uint32(1), lanes))
        rounded = T.shift_right(bits + last + splat(T.uint32(0x7FFF), lanes), splat(T.uint32(16), lanes))
        value = T.cast(rounded, _typed("uint16", lanes))
    elif dtype != "float32":
        value = T.cast(value, _typed(dtype, lanes))
    T.buffer_store(buffer, value, [at(offset, lanes)])


def exp2_nonpositive(y, lanes: int):
    """2^y for y <= 0, at most 2 units in the last place off; exactly 1 at 0 and exactly 0 at -127 and below."""
    return _exp2(T.Bind(T.max(y, f32(-127.0, lanes))), lanes)


def exp2(y, lanes: int):
    """2^y for y clipped to [-126, 126], where float32 has normal numbers; relative error below 3e-7."""
    return _exp2(T.Bind(T.max(T.min(y, f32(126.0, lanes)), f32(-126.0, lanes))), lanes)


def _exp2(y, lanes: int):
    """2^whole through the exponent's bits, times the polynomial of the rest in [-0.5, 0.5]."""
    # Through the integer type, because TVM simplifies (y + c) - c to y.
    t = T.Bind(T.reinterpret(_typed("int32", lanes), y + f32(_ROUND, lanes)))
    f = T.Bind(y - (T.reinterpret(_typed("float32", lanes), t) - f32(_ROUND, lanes)))
    p = f32(_EXP2[-1], lanes)
    for c in _EXP2[-2::-1]:
        p = p * f + f32(c, lanes)
    bits = T.reinterpret(_typed("int32", lanes), p) + T.shift_left(t, splat(T.int32(23), lanes))
    return T.reinterpret(_typed("float32", lanes), bits)


def tanh(x, lanes: int):
    """tanh: an odd Taylor polynomial below 0.35 in magnitude, (1 - e) / (1 + e) with e = exp(-2 |x|) above."""
    x = T.Bind(x)
    size = T.Bind(T.max(x, f32(0.0, lanes) - x))
    e = T.Bind(exp2_nonpositive(size * f32(-2.0 * LOG2_E, lanes), lanes))
    large = T.Bind((f32(1.0, lanes) - e) / (f32(1.0, lanes) + e))
    square = T.Bind(x * x)
    p = f32(21844.0 / 6081075.0, lanes)
    for c in (-1382.0 / 155925.0, 62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0):
        p = p * square + f32(c, lanes)
    small = T.Bind(x * (f32(1.0, lanes) + square * p))
    signed = T.Bind(T.Select(x < f32(0.0, lanes), f32(0.0, lanes) - large, large))
    return T.Select(size < f32(0.35, lanes), small, signed)


def natural_log(x):
    """ln of a positive normal scalar: x = 2^n m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1))."""
    bits = T.Bind(T.reinterpret("int32", x))
    # 0x3F3504F3 is sqrt(1/2): the subtraction makes the exponent field that of x / sqrt(1/2), rounded down.
    n = T.Bind(T.shift_right(bits - T.int32(0x3F3504F3), T.int32(23)))
    m = T.Bind(T.reinterpret("float32", bits - T.shift_left(n, T.int32(23))))
    s = T.Bind((m - T.float32(1.0)) / (m + T.float32(1.0)))
    square = T.Bind(s * s)
    p = T.float32(2.0 / 11.0)
    for c in (2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0):
        p = p * square + T.float32(c)
    return T.cast(n, "float32") * T.float32(LN_2) + s * p


def lanes_max(value, lanes: int):
    """The largest lane."""
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", value) if lanes > 1 else value


def lanes_sum(value, lanes: int):
    """The sum of all lanes as a tree: LLVM's own ordered reduction is a chain of `lanes` additions."""
    while lanes > 1:
        lanes //= 2
        value = T.Bind(value)
        value = half(value, 0, lanes) + half(value, lanes, lanes)
    return value


def transpose(vectors, lanes: int):
    """A square of `lanes` vectors transposed in registers, by exchanging halves, quarters, ... of pairs of vectors."""
    out, step = list(vectors), lanes // 2
    while step:
        for i in range(lanes):
            if i & step == 0:
                a, b = out[i], out[i + step]
                low = [e if e & step == 0 else lanes + e - step for e in range(lanes)]
                high = [e + step if e & step == 0 else lanes + e for e in range(lanes)]
                out[i] = T.Bind(Shuffle([a, b], list(map(T.int32, low))))
                out[i + step] = T.Bind(Shuffle([a, b], list(map(T.int32, high))))
        step //= 2
    return out


def half(value, first: int, count: int):
    """`count` lanes from lane `first` on."""
    return Shuffle([value], [T.int32(first + i) for i in range(count)])


def _typed(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype
