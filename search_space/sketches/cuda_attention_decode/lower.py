"""Lowers a choice to TIRx."""

import tvm

from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.hopper_decode import decode_kernel
from search_space.sketches.cuda_attention_decode.space import plan
from search_space.target import Target
from search_space.workload import Workload


def lower(workload: Workload, target: Target, knobs: Knobs) -> Lowered:
    tile, launch = plan(workload, target, knobs)
    return Lowered(tvm.IRModule({"main": decode_kernel(tile)}), launch=launch)
