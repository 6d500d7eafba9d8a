"""Lowers a choice to TIRx."""

import tvm

from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.hopper_splitk import split_kernel
from search_space.sketches.cuda_gemm_splitk.space import plan
from search_space.target import Target
from search_space.workload import Workload


def lower(workload: Workload, target: Target, knobs: Knobs) -> Lowered:
    tile, launch = plan(workload, target, knobs)
    return Lowered(tvm.IRModule({"main": split_kernel(tile)}), launch=launch)
