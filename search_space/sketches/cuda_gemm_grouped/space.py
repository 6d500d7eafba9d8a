"""Grouped GEMM in 16-bit types: which rows belong to which expert is read on the device, by every block on its own."""

from search_space.hopper import gemm_space as common
from search_space.hopper import kmajor_space as kmajor
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

plan = kmajor.plan
# block_m, block_n, slabs, consumers, cluster_m, schedule
_SEEDS = (
    (128, 256, 1, 2, 2, "cooperative"), (128, 256, 1, 2, 1, "cooperative"), (256, 128, 1, 2, 2, "cooperative"),
    (128, 128, 1, 2, 2, "pingpong"), (128, 128, 1, 2, 1, "pingpong"), (64, 256, 1, 2, 1, "pingpong"),
    (128, 192, 1, 2, 1, "cooperative"), (64, 128, 2, 1, 1, "cooperative"), (64, 256, 1, 1, 1, "cooperative"),
    (64, 64, 2, 1, 1, "cooperative"),
)  # fmt: skip


class CudaGemmGrouped(Sketch):
    name = "cuda_gemm_grouped"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k", "groups")
    complexity = 3

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        w = common.gemm_of(workload)
        if w.groups == 1:
            return Refusal("groups", "made for more than one group of rows")
        if target.arch not in ("sm_90", "sm_90a"):
            return Refusal("target.arch", f"wgmma and TMA need sm_90a, the device is {target.arch}", ("sm_90a",))
        if w.dtype_a not in common.HALF_TYPES:
            return Refusal("dtype_a", f"16-bit operands only, got {w.dtype_a}", common.HALF_TYPES)
        if w.dtype_b != w.dtype_a:
            return Refusal("dtype_b", f"must be dtype_a ({w.dtype_a}), got {w.dtype_b}", (w.dtype_a,))
        if w.dtype_out != w.dtype_a:
            return Refusal("dtype_out", f"must be dtype_a ({w.dtype_a}), got {w.dtype_out}", (w.dtype_a,))
        return kmajor.refuse_layout(w, 2)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return kmajor.tile_knobs(common.gemm_of(workload))

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        return kmajor.violation(workload, target, knobs)

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return kmajor.resources(workload, knobs)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return kmajor.traffic(workload, target, knobs)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return kmajor.features(workload, target, knobs)

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        w = common.gemm_of(workload)
        chosen: list[Knobs] = []
        for block_m, block_n, slabs, consumers, cluster_m, schedule in _SEEDS:
            knobs = kmajor.plain_knobs(
                w, block_m, block_n, consumers, slabs=slabs, cluster_m=cluster_m, schedule=schedule
            )
            if (filled := common.most_stages(self, workload, target, knobs)) is not None:
                chosen.append(filled)
        return tuple(chosen)


SKETCH = CudaGemmGrouped()
