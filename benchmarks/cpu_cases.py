"""The workloads of `benchmarks.cpu`, each with the suite it is shown in."""

from collections.abc import Mapping
from dataclasses import dataclass

from search_space.workload import parse_workload


@dataclass(frozen=True)
class Case:
    suite: str
    workload: dict[str, object]

    @property
    def label(self) -> str:
        """What `--only` is compared with: `gemm_trans_b:16x4096x4096`, `attention:512`."""
        extents = [str(self.workload[name]) for name in ("m", "n", "k", "seq") if name in self.workload]
        return f"{self.suite}:{'x'.join(extents)}"

    def is_of(self, row: Mapping[str, object]) -> bool:
        """Whether a row of a result file is this case's."""
        fields = parse_workload(self.workload).to_json()
        return row["suite"] == self.suite and all(row.get(name) == value for name, value in fields.items())


def gemm(suite: str, m: int, n: int, k: int, **more: object) -> Case:
    return Case(suite, {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "float32", **more})


def attention(seq: int, **more: object) -> Case:
    """BERT-base's attention: 12 heads of 64."""
    return Case("attention", {"op": "attention", "heads": 12, "seq": seq, "head_dim": 64, "dtype": "float32", **more})


SHAPES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1000, 999, 1001),
    (128, 3072, 768),
    (16, 4096, 4096),
    (1, 4096, 4096),
)
HEADLINE = (
    *(gemm("gemm", *shape) for shape in SHAPES),
    *(gemm("gemm_trans_b", *shape, trans_b=True) for shape in SHAPES),
    Case("gemm_bf16", {"op": "gemm", "m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16"}),
    attention(128),
    attention(197),
    attention(512),
    attention(2048, causal=True),
)
PACKED_AHEAD = tuple(gemm("packed_ahead", *shape, trans_b=True, b_constant=True) for shape in SHAPES)
# The demo's job: four tasks share these trials.
DEMO_TRIALS = 112
STABILITY = (
    gemm("demo", 16, 4096, 4096, trans_b=True),
    gemm("demo", 128, 3072, 768),
    attention(128),
    attention(512),
)
METASCHEDULE = (gemm("metaschedule", 1024, 1024, 1024), gemm("metaschedule", 128, 3072, 768))
