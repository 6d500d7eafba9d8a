"""The epilogues of the GEMM domain on one float32 value, as TIR expressions."""

import math

from tvm.script import tirx as T


def activate(epilogue, x):
    """`x` already holds the bias. gelu is x * Phi(x), torch's default; silu is x / (1 + e^-x)."""
    if epilogue.endswith("relu"):
        return T.max(x, T.float32(0))
    if epilogue.endswith("gelu"):
        return T.float32(0.5) * x * (T.float32(1) + T.erf(x * T.float32(1 / math.sqrt(2))))
    if epilogue.endswith("silu"):
        return x / (T.float32(1) + T.exp(-x))
    return x
