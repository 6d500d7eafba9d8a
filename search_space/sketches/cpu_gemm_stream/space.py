"""Knobs of the streaming GEMM."""

from search_space.cpu_gemm import gemm, legal_seeds
from search_space.cpu_stream_plan import StreamPlan
from search_space.cpu_thin_space import ThinSketch, stream_knobs, stream_plan, stream_refusal, stream_wishes
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload

# Above this many rows the product is bound by arithmetic, and the sums no longer stay close.
_THIN = 64


class CpuGemmStream(ThinSketch):
    """Loop order: parallel (batch, n chunk) > block of kb rows of B > n tile > m tile > kb > mr x nv vectors."""

    name = "cpu_gemm_stream"
    version = 1
    complexity = 2

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.m == 1:
            return Refusal("m", "one row is a matrix-vector product", (">= 2",))
        if workload.m > _THIN:
            return Refusal("m", "has too many rows to stream B for", (f"<= {_THIN}",))
        return stream_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return stream_knobs(gemm(workload), target)

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> StreamPlan:
        return stream_plan(workload, target, knobs)

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        return legal_seeds(self, workload, target, stream_wishes(gemm(workload), target))


SKETCH = CpuGemmStream()
