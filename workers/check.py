"""Whether a kernel's answer is acceptable: no more error than a right algorithm in the stated precision can make.

    |C - C64| <= c u M + r |C64|

u is the unit roundoff of the accumulator (2^-24), M the magnitudes of `workers.reference`, r one rounding to the output
type. c grows with the square root of the number of terms, as rounding errors do that are not correlated (Higham and
Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4). A 16-bit accumulator makes errors of 2^-11 or 2^-8 in its first
addition, hundreds of times what is accepted; NaN is never equal to anything.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from search_space.attention import AttentionWorkload
from search_space.dtypes import DTYPES
from search_space.gemm import GemmWorkload
from search_space.workload import Workload
from workers.reference import Reference

_U = DTYPES["float32"].epsilon  # every workload accumulates in float32

# lambda of the probabilistic bound lambda sqrt(n) u, by input dtype. A matrix unit truncates what it shifts out when it
# adds products, where a multiply-add rounds: errors of one sign, so that 16-bit inputs get four times as much. Those
# of float8 keep 14 bits of each partial sum on Hopper (DeepSeek-V3, arXiv:2412.19437, section 3.5.2): 2^-13 / u.
LAMBDA = {"float32": 2.0, "float16": 8.0, "bfloat16": 8.0, "float8_e4m3": 2048.0}
# Roundings in an activation, relative to its argument's magnitude: erf, exp and a division of float32 libraries.
ACTIVATION = 16.0
# Roundings in one exponential and in the sums and rescalings around it, relative to P |V|.
SOFTMAX = 32.0
# Smallest positive subnormal of each type: what rounding can lose near zero.
_SUBNORMAL = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float8_e4m3": 2.0**-9}
# Weights below 2^-126 may be flushed to zero; what they are multiplied with stays far below 2^26.
_FLUSHED = 2.0**-100
_BLOCK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class CheckResult:
    """`max_rel_err` is the largest error over the largest |C64| of the same output (NaN and infinities left out);
    `worst` the largest error in units of what is accepted. `message` says where it is wrong, empty when it is not."""

    ok: bool
    max_rel_err: float
    worst: float
    message: str = ""


def coefficients(workload: Workload) -> dict[str, dict[str, float]]:
    """c u for each output and magnitude term of the reference."""
    if isinstance(workload, GemmWorkload):
        extra = ACTIVATION if workload.epilogue not in ("none", "bias") else 0.0
        terms = workload.k + (workload.epilogue != "none")
        return {"c": {"sums": (LAMBDA[workload.dtype_a] * math.sqrt(terms) + extra) * _U}}
    if isinstance(workload, AttentionWorkload):
        factor = LAMBDA[workload.dtype]
        values = (factor * math.sqrt(workload.seq_kv) + SOFTMAX) * _U
        # With 16-bit inputs the weights P are rounded to that type before they are multiplied with V.
        values += DTYPES[workload.dtype].epsilon if workload.dtype != "float32" else 0.0
        scores = factor * math.sqrt(workload.head_dim) * _U
        if workload.pass_ == "backward":
            return _backward_coefficients(workload, factor, scores)
        return {"o": {"values": values, "scores": scores}, "lse": {"scores": scores}}
    raise ValueError(f"no acceptance rule for {workload.op}")


def _backward_coefficients(w: AttentionWorkload, factor: float, scores: float) -> dict[str, dict[str, float]]:
    """P and dS are rounded to a 16-bit input type before they are multiplied; dP and delta are sums over head_dim."""
    rounding = DTYPES[w.dtype].epsilon if w.dtype != "float32" else 0.0
    queries = w.seq_q * w.heads_q // w.heads_kv
    terms = {"dq": w.seq_kv, "dk": queries, "dv": queries}
    return {
        name: {
            "sums": (factor * (math.sqrt(count) + math.sqrt(w.head_dim_v)) + SOFTMAX) * _U + rounding,
            "scores": scores,
        }
        for name, count in terms.items()
    }


class Acceptance:
    """The rule for one workload and one set of inputs, made once and used for every candidate."""

    def __init__(self, workload: Workload, reference: Reference) -> None:
        self._expected = {name: value.reshape(-1) for name, value in reference.outputs.items()}
        self._shapes = {name: tuple(value.shape) for name, value in reference.outputs.items()}
        self._tolerance = {
            o.name: _tolerance(reference, o.name, o.dtype, coefficients(workload)[o.name]) for o in workload.outputs()
        }

    def check(self, outputs: Mapping[str, torch.Tensor]) -> CheckResult:
        """`outputs` by name, of the workload's shapes, on the reference's device."""
        results = [self._check(name, outputs[name]) for name in self._expected]
        errors, worst = max(r.max_rel_err for r in results), max(r.worst for r in results)
        message = "; ".join(r.message for r in results if not r.ok)
        return CheckResult(not message, errors, worst, message)

    def _check(self, name: str, output: torch.Tensor) -> CheckResult:
        if tuple(output.shape) != self._shapes[name]:
            return CheckResult(False, math.inf, math.inf, f"{name} has shape {list(output.shape)}")
        got, expected, tolerance = output.reshape(-1), self._expected[name], self._tolerance[name]
        first, wrong, error, worst = -1, 0, 0.0, 0.0
        for i in range(0, len(got), _BLOCK_ELEMENTS):
            block = slice(i, i + _BLOCK_ELEMENTS)
            bad, err, ratio = _compare(got[block].double(), expected[block], tolerance[block])
            count = int(bad.sum())
            if count and first < 0:
                first = i + int(bad.to(torch.int8).argmax())
            wrong, error, worst = wrong + count, max(error, err), max(worst, ratio)
        scale = _largest(expected)
        relative = error / scale if scale > 0.0 else error
        if not wrong:
            return CheckResult(True, relative, worst)
        where = list(_unravel(first, self._shapes[name]))
        message = (
            f"{name}{where} is {float(got[first]):.7g}, expected {float(expected[first]):.7g} "
            f"+- {float(tolerance[first]):.2g}; {wrong} of {len(got)} elements are wrong"
        )
        return CheckResult(False, relative, worst, message)


def check(workload: Workload, outputs: Mapping[str, torch.Tensor], reference: Reference) -> CheckResult:
    """One comparison; for many candidates of a task make the Acceptance once."""
    return Acceptance(workload, reference).check(outputs)


def _tolerance(reference: Reference, name: str, dtype: str, factors: Mapping[str, float]) -> torch.Tensor:
    """Flat float64: c u M + r |C64|. An infinite expectation (LSE of an empty row) is to be met exactly."""
    expected = reference.outputs[name].reshape(-1)
    finite = torch.where(expected.isfinite(), expected, 0.0)
    total = finite.abs() * DTYPES[dtype].epsilon + _SUBNORMAL[dtype]
    for term, factor in factors.items():
        total += factor * reference.magnitudes[name][term].reshape(-1)
    if name in ("dq", "dk", "dv"):
        total += _FLUSHED
    if name == "lse":
        total += SOFTMAX * _U * (1.0 + finite.abs())
    return total


def _compare(got: torch.Tensor, expected: torch.Tensor, tolerance: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """(which are wrong, largest finite error, largest error / tolerance). NaN is wrong wherever it stands, but where
    the reference is NaN too: nothing has to be written there, and anything may stand there."""
    got = torch.where(expected.isnan(), expected, got)
    error = torch.where(expected.isnan(), 0.0, (got - expected).abs())
    error = torch.where(got == expected, 0.0, error)  # equal infinities
    bad = ~(error <= tolerance)
    ratio = error / tolerance
    worst = math.inf if bool(ratio.isnan().any()) else float(ratio.max()) if len(ratio) else 0.0
    return bad, _largest(error), worst


def _largest(values: torch.Tensor) -> float:
    finite = torch.where(values.isfinite(), values.abs(), 0.0)
    return float(finite.max()) if len(finite) else 0.0


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    places = []
    for extent in reversed(shape):
        index, place = divmod(index, extent)
        places.append(place)
    return tuple(reversed(places))
