"""Lowers a choice of cpu_gemm_dot."""

import tvm

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.dot_product import dot_product
from search_space.sketches.cpu_gemm_dot.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    return Lowered(tvm.IRModule({"main": dot_product(SKETCH.plan(workload, target, knobs))}))
