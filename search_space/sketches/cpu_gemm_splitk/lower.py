"""Lowers a choice of cpu_gemm_splitk."""

import tvm

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.register_tile import register_tiled
from search_space.sketches.cpu_gemm_splitk.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    return Lowered(tvm.IRModule({"main": register_tiled(SKETCH.plan(workload, target, knobs))}))
