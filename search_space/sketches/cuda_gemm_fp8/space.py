"""float8_e4m3 operands with float32 sums: scaled per tensor, or per 1x128 of A and 128x128 of B."""

from search_space.hopper import gemm_space as common
from search_space.hopper import kmajor_space as kmajor
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Traffic
from search_space.target import Target
from search_space.workload import Workload

plan = kmajor.plan
FLOAT8 = "float8_e4m3"
# block_m, block_n, consumers, cluster_m, schedule: the first won most large shapes on an H200
# (docs/results/h200_gemm_fp8.json), the widths in between fill the last wave of some.
_SEEDS = (
    (128, 128, 2, 1, "pingpong"), (128, 128, 2, 1, "cooperative"), (128, 256, 2, 2, "cooperative"),
    (128, 192, 2, 2, "cooperative"), (128, 176, 2, 2, "cooperative"), (256, 128, 2, 2, "cooperative"),
    (128, 112, 2, 1, "cooperative"), (64, 112, 1, 1, "cooperative"), (64, 64, 1, 1, "cooperative"),
    (128, 64, 2, 1, "cooperative"), (64, 128, 2, 1, "pingpong"),
)  # fmt: skip


def refuse_float8(workload: Workload, target: Target) -> Refusal | None:
    """float8_e4m3 on both sides, layouts as wgmma reads 8-bit operands (k contiguous), neither groups nor batch."""
    w = common.gemm_of(workload)
    if target.arch not in ("sm_90", "sm_90a"):
        return Refusal("target.arch", f"wgmma and TMA need sm_90a, the device is {target.arch}", ("sm_90a",))
    if w.dtype_a != FLOAT8:
        return Refusal("dtype_a", f"float8_e4m3 operands only, got {w.dtype_a}", (FLOAT8,))
    if w.dtype_b != FLOAT8:
        return Refusal("dtype_b", f"must be dtype_a ({w.dtype_a}), got {w.dtype_b}", (FLOAT8,))
    if w.groups > 1:
        return Refusal("groups", "grouped float8 GEMM has no sketch yet", ("1",))
    return kmajor.refuse_layout(w, 1)


class CudaGemmFp8(Sketch):
    name = "cuda_gemm_fp8"
    version = 1
    op = "gemm"
    target_kind = "cuda"
    runtime_extents = ("m", "n", "k")
    complexity = 2

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        return refuse_float8(workload, target)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        # Block scales are applied by promotion, so that there is no choice then.
        choice = (True,) if common.gemm_of(workload).scales == "block" else (False, True)
        promote = Knob("promote", choice, "add each stage's products in float32 registers, not in the tensor core")
        overlap = Knob("overlap", (False, True), "additions of one stage run under the products of the next")
        return (*kmajor.tile_knobs(common.gemm_of(workload)), promote, overlap)

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
        for block_m, block_n, consumers, cluster_m, schedule in _SEEDS:
            block = w.scales == "block"
            for overlap in (True, False) if block else (False,):
                change: Knobs = {"cluster_m": cluster_m, "schedule": schedule, "promote": block, "overlap": overlap}
                knobs = kmajor.plain_knobs(w, block_m, block_n, consumers, **change)
                if (filled := common.most_stages(self, workload, target, knobs)) is not None:
                    chosen.append(filled)
        return tuple(chosen)


SKETCH = CudaGemmFp8()
