"""erf and the activations as vector code: T.exp and T.erf become one libm call a lane, over ten times slower.

Coefficients are a Chebyshev fit made at import, so that nothing here is a table to trust.
"""

import math
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from tvm.tirx.script.builder import ir as T

from search_space.lowering.emit import constant
from search_space.lowering.vector_math import LOG2_E, exp2

Expr = Any

# erf(x) = x * P(x^2) on [-EDGE, EDGE]; beyond it erf is 1 to float32's last bit (1 - erf(3.9) = 3.5e-8).
_ERF_EDGE = 3.9
_ERF_DEGREE = 15


def _fit_erf() -> list[float]:
    """Coefficients in s = 2 x^2 / EDGE^2 - 1, lowest first: in s the monomials are well conditioned on [-1, 1]."""
    s = np.cos(np.pi * (np.arange(512) + 0.5) / 512)
    u = (s + 1.0) * _ERF_EDGE**2 / 2
    g = np.array([math.erf(math.sqrt(v)) / math.sqrt(v) for v in u])
    return [float(c) for c in chebyshev.cheb2poly(chebyshev.chebfit(s, g, _ERF_DEGREE))]


_ERF = _fit_erf()


def _horner(coefficients: list[float], x: Expr, lanes: int) -> Expr:
    value = constant(coefficients[-1], lanes)
    for c in reversed(coefficients[:-1]):
        value = value * x + constant(c, lanes)
    return value


def erf(x: Expr, lanes: int) -> Expr:
    """erf of a float32 vector, absolute error below 3e-7."""
    edge = constant(_ERF_EDGE, lanes)
    clipped = T.Bind(T.max(T.min(x, edge), constant(-_ERF_EDGE, lanes)))
    s = T.Bind(clipped * clipped * constant(2 / _ERF_EDGE**2, lanes) - constant(1.0, lanes))
    return clipped * _horner(_ERF, s, lanes)


def exp(x: Expr, lanes: int) -> Expr:
    """e^x of a float32 vector; clipped to 2^-126 .. 2^126."""
    return exp2(x * constant(LOG2_E, lanes), lanes)


def activation(epilogue: str, x: Expr, lanes: int) -> Expr:
    """The activation that follows the bias in `epilogue`: exact GELU x Phi(x), ReLU, or SiLU x / (1 + e^-x)."""
    if epilogue == "bias+relu":
        return T.max(x, constant(0.0, lanes))
    if epilogue == "bias+gelu":
        x = T.Bind(x)
        return x * constant(0.5, lanes) * (constant(1.0, lanes) + erf(x * constant(math.sqrt(0.5), lanes), lanes))
    if epilogue == "bias+silu":
        x = T.Bind(x)
        return x / (constant(1.0, lanes) + exp(constant(0.0, lanes) - x, lanes))
    return x
