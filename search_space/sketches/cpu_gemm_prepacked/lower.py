"""Lowers a choice of cpu_gemm_prepacked."""

import tvm

from search_space.cpu_gemm import itemsize
from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered, Prepack
from search_space.lowering.register_tile import packing_function, register_tiled
from search_space.sketches.cpu_gemm_prepacked.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    plan = SKETCH.plan(workload, target, knobs)
    module = tvm.IRModule({"main": register_tiled(plan), "pack_b": packing_function(plan)})
    nbytes = plan.packed_b_elements * itemsize(plan.packed_dtype)
    return Lowered(module, (Prepack("b", "pack_b", nbytes),))
