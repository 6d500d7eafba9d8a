"""Small sketches with a known latency function: searching them needs no compiler, and the optimum is known exactly."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.gemm import GemmWorkload
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Refusal, Resources, Sketch, Space, Traffic, legal_points
from search_space.target import Target
from search_space.workload import Workload
from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.roofs import Roofs
from tuner.task import Task, TuningRecord

TARGET = Target(
    "cpu", "test-arch", "Test CPU", cores=2, vector_bits=256, l1_bytes=32768, l2_bytes=524288, l3_bytes=2**25
)
IDENTITY = EnvironmentIdentity("cpu", "Test CPU", "test-arch", 2, "glibc", "", "0", "llvm", "v1/warm")
ROOFS = Roofs({"float32": 1e11}, memory_bytes_per_s=2e10)

POWERS = (1, 2, 4, 8, 16, 32, 64)
FINE = tuple(range(4, 132, 4))


def gemm(m: int = 256, n: int = 256, k: int = 256, **fields: object) -> GemmWorkload:
    return GemmWorkload.from_json({"m": m, "n": n, "k": k, "dtype": "float32", **fields})


@dataclass(frozen=True)
class Tiled(Sketch):
    """Register-tiled: best at tiles 8 x 32 and tile_k 16, packed; a tile over `limit` elements spills."""

    name = "tiled"
    version = 1
    op = "gemm"
    target_kind = "cpu"
    complexity = 2

    tiles: tuple[int, ...] = POWERS
    limit: int = 512
    with_seed: bool = False

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("tile_m", self.tiles),
            Knob("tile_n", self.tiles),
            Knob("tile_k", self.tiles),
            Knob("unroll", (1, 2, 4, 8)),
            Knob("pack", (False, True)),
            Knob("order", ("mnk", "nmk", "kmn")),
        )

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        if int(knobs["tile_m"]) * int(knobs["tile_n"]) > self.limit:
            return Constraint("registers", "the accumulators would spill")
        return None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return Resources(registers=int(knobs["tile_m"]) * int(knobs["tile_n"]) // 8, threads=16)

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        per_flop = 1.0 / int(knobs["tile_m"]) + 1.0 / int(knobs["tile_n"])  # two float32 loads a multiply-add
        return Traffic(float(workload.min_bytes()), l1_bytes=2.0 * workload.flops() * per_flop)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return {"tile_area": float(int(knobs["tile_m"]) * int(knobs["tile_n"]))}

    def seeds(self, workload: Workload, target: Target) -> tuple[Knobs, ...]:
        seed: Knobs = {"tile_m": 4, "tile_n": 16, "tile_k": 16, "unroll": 1, "pack": True, "order": "mnk"}
        return (seed,) if self.with_seed else ()


@dataclass(frozen=True)
class Plain(Sketch):
    """Two knobs, never the fastest."""

    name = "plain"
    version = 1
    op = "gemm"
    target_kind = "cpu"
    complexity = 1

    values: tuple[int, ...] = (1, 2, 4, 8, 16)

    def refusal(self, workload: Workload, target: Target) -> Refusal | None:
        return None

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return (Knob("block", self.values), Knob("unroll", (1, 2)))

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        return Constraint("block", "16 is too much unrolled") if knobs == {"block": 16, "unroll": 2} else None

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        return Resources()

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return Traffic(float(workload.min_bytes()))

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Thorny(Tiled):
    """A large space of which about one point in 30,000 is legal, and one of them is known: a seed."""

    name = "thorny"
    tiles: tuple[int, ...] = FINE
    with_seed: bool = True

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        same = knobs["tile_m"] == 4 and knobs["tile_k"] == 16 and knobs["unroll"] == 1 and knobs["pack"]
        return None if same and knobs["order"] == "mnk" else Constraint("thorny", "only tile_n is free")


def space(sketch: Sketch, workload: Workload | None = None) -> Space:
    workload = workload or gemm()
    return Space(sketch, workload, TARGET, sketch.knobs(workload, TARGET))


def task(workload: Workload | None = None, target: Target = TARGET) -> Task:
    return Task(workload or gemm(), target)


def latency_s(candidate: Candidate, scale: float = 1e-3, noise: float = 0.02) -> float:
    """Deterministic seconds; a ripple of +-`noise` by the candidate's hash stands for what no feature explains."""
    knobs = candidate.knobs
    if candidate.sketch == "plain":
        cost = 3.0 + 0.2 * abs(math.log2(int(knobs["block"]) / 8))
    else:
        cost = 1.0
        for name, best, steep in (("tile_m", 8, 0.25), ("tile_n", 32, 0.35), ("tile_k", 16, 0.1)):
            cost += steep * math.log2(int(knobs[name]) / best) ** 2
        cost += 0.15 * abs(math.log2(int(knobs["unroll"]) / 4)) + (0.0 if knobs["pack"] else 0.4)
        cost += {"mnk": 0.0, "nmk": 0.1, "kmn": 0.8}[str(knobs["order"])]
    digest = hashlib.sha256(candidate.key.encode()).digest()
    return scale * cost * (1.0 + noise * (digest[0] / 127.5 - 1.0))


def optimum_s(spaces: Iterable[Space]) -> float:
    """The lowest latency of all legal points, by looking at every one."""
    return min(latency_s(s.candidate(knobs)) for s in spaces for knobs in legal_points(s))


def ok(seconds: float) -> Measurement:
    return Measurement(Outcome.OK, (seconds,), identity=IDENTITY)


def failed(outcome: Outcome = Outcome.BUILD_ERROR) -> Measurement:
    return Measurement(outcome, error="does not build", identity=IDENTITY)


def record(
    candidate: Candidate, measurement: Measurement, trial: int = 0, of: Task | None = None, job_id: str = "job_1"
) -> TuningRecord:
    return TuningRecord(of or task(), candidate, trial, 0, measurement, job_id)
