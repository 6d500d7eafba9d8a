"""Knobs of the dot-product GEMM."""

from search_space.cpu_dot_plan import DotPlan
from search_space.cpu_gemm import gemm, legal_seeds
from search_space.cpu_thin_space import ThinSketch, dot_knobs, dot_plan, dot_refusal, dot_wishes
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Refusal
from search_space.target import Target
from search_space.workload import Workload

# Above this many rows and columns the sums across lanes and the missing reuse of B lose to a packed register tile.
_THIN = 64


class CpuGemmDot(ThinSketch):
    """Loop order: parallel (batch, n chunk, m chunk) > n tile > k block > m tile > k > mr x nr vector sums."""

    name = "cpu_gemm_dot"
    version = 1
    complexity = 2

    def structure_refusal(self, workload: GemmWorkload, target: Target) -> Refusal | None:
        if workload.m == 1:
            return Refusal("m", "one row is a matrix-vector product", (">= 2",))
        if min(workload.m, workload.n) > _THIN:
            return Refusal("m", f"neither m nor n is at most {_THIN}", (f"<= {_THIN}",))
        return dot_refusal(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return dot_knobs(gemm(workload), target)

    def plan(self, workload: GemmWorkload, target: Target, knobs: Knobs) -> DotPlan:
        return dot_plan(workload, target, knobs)

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        return legal_seeds(self, workload, target, dot_wishes(gemm(workload), target))


SKETCH = CpuGemmDot()
