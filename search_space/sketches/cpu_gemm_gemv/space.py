"""Knobs of the matrix-vector product (m = 1)."""

from search_space.cpu_gemm import gemm, legal_seeds
from search_space.cpu_thin_space import (
    ThinPlan,
    ThinSketch,
    b_lies_along_k,
    dot_knobs,
    dot_plan,
    dot_refusal,
    dot_wishes,
    stream_knobs,
    stream_plan,
    stream_refusal,
    stream_wishes,
)
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload


class CpuGemmGemv(ThinSketch):
    """The dot-product structure where B is transposed, the streaming one where it is not, with a single row."""

    name = "cpu_gemm_gemv"
    version = 1
    complexity = 2

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.m != 1:
            return Refusal("m", "a matrix-vector product has one row", ("1",))
        return dot_refusal(workload, target) if b_lies_along_k(workload) else stream_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        w = gemm(workload)
        return dot_knobs(w, target) if b_lies_along_k(w) else stream_knobs(w, target)

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> ThinPlan:
        make = dot_plan if b_lies_along_k(workload) else stream_plan
        return make(workload, target, knobs)

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = gemm(workload)
        return legal_seeds(self, w, target, (dot_wishes if b_lies_along_k(w) else stream_wishes)(w, target))


SKETCH = CpuGemmGemv()
