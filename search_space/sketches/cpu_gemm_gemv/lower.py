"""Lowers a choice of cpu_gemm_gemv."""

import tvm

from search_space.cpu_dot_plan import DotPlan
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.dot_product import dot_product
from search_space.lowering.stream import stream
from search_space.sketches.cpu_gemm_gemv.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    plan = SKETCH.plan(workload, target, knobs)
    return Lowered(tvm.IRModule({"main": dot_product(plan) if isinstance(plan, DotPlan) else stream(plan)}))
