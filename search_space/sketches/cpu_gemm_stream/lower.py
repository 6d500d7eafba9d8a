"""Lowers a choice of cpu_gemm_stream."""

import tvm

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.stream import stream
from search_space.sketches.cpu_gemm_stream.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    return Lowered(tvm.IRModule({"main": stream(SKETCH.plan(workload, target, knobs))}))
