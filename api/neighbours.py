"""Answering for a shape that was never tuned, with the schedule of another: labelled, and never taken for measured.

The prediction keeps the neighbour's share of the roofline (Williams et al., CACM 52(4), 2009): peak and bandwidth are
those that its own record implies, so predicted time = roofline time of the asked shape / that share.
"""

import dataclasses
import math
from collections.abc import Sequence

from api import present, schemas
from search_space import registry
from search_space.errors import InvalidField
from search_space.workload import Workload
from tuner.views import ScheduleView

CANDIDATES = 8
# How far a prediction may be off, as a factor: at distance nought (another launch, another tail), and for each
# doubling of the work. Wide on purpose; the interval is a label of doubt, not a confidence level.
_NEAR = 1.15
_PER_DOUBLING = 1.10


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Seconds."""

    latency_s: float
    interval_s: tuple[float, float]
    baseline_latency_s: float | None


def nearest_legal(asked: Workload, found: Sequence[ScheduleView]) -> schemas.NearestSchedule | None:
    """The first of `found` (nearest first) whose knobs are legal for `asked`; None when none is."""
    for view in found:
        if is_legal(asked, view):
            return _answer(asked, view)
    return None


def is_legal(asked: Workload, view: ScheduleView) -> bool:
    """Whether the sketch exists here at the same version, takes the asked workload, and the knobs break no rule."""
    candidate = view.best.candidate
    sketch = registry.all_sketches().get(candidate.sketch)
    if sketch is None or sketch.version != candidate.version or sketch.op != asked.op:
        return False
    try:
        return (
            sketch.refusal(asked, view.target) is None and sketch.violated(asked, view.target, candidate.knobs) is None
        )
    except InvalidField:
        return False


def runs_as_is(asked: Workload, view: ScheduleView) -> bool:
    """Whether the built kernel takes the asked shape: they differ in run-time extents alone."""
    sketch = registry.all_sketches()[view.best.candidate.sketch]
    mine, theirs = asked.to_json(), view.workload.to_json()
    differing = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
    return differing <= set(sketch.runtime_extents)


def predict(asked: Workload, view: ScheduleView) -> Prediction:
    best = view.best
    scale = _roofline_ratio(asked, view)
    doublings = abs(math.log2(_work(asked) / _work(view.workload)))
    doubt = _NEAR * _PER_DOUBLING**doublings
    latency = best.latency_s * scale
    vendor = best.baseline_latency_s
    return Prediction(latency, (latency / doubt, latency * doubt), None if vendor is None else vendor * scale)


def _work(workload: Workload) -> int:
    """FLOPs, at least 1: a mask may show nothing."""
    return max(1, workload.flops())


def _roofline_ratio(asked: Workload, view: ScheduleView) -> float:
    """Roofline time of `asked` over that of the neighbour; the larger of work and traffic where no ridge is known."""
    flops = _work(asked) / _work(view.workload)
    traffic = asked.min_bytes() / view.workload.min_bytes()
    ridge = view.best.ridge_flop_per_byte
    if not ridge or ridge <= 0:
        return max(flops, traffic)

    def time(workload: Workload) -> float:
        return max(workload.flops() / ridge, float(workload.min_bytes()))

    return time(asked) / time(view.workload)


def _answer(asked: Workload, view: ScheduleView) -> schemas.NearestSchedule:
    prediction = predict(asked, view)
    direct = runs_as_is(asked, view)
    beats = view.best.served != "vendor" and (view.best.speedup_ci95 is None or view.best.speedup_ci95[0] > 1.0)
    return schemas.NearestSchedule(
        nearest_to=present.workload(asked),
        schedule=present.schedule(view, runnable=direct),
        runs_as_is=direct,
        predicted_latency_s=prediction.latency_s,
        predicted_interval_s=prediction.interval_s,
        predicted_baseline_latency_s=prediction.baseline_latency_s,
        neighbour=present.schedule_detail(view),
        served=schemas.Served(kind="tilewright" if direct and beats else "vendor"),
    )
