"""Lowers a choice to TIRx: three kernels."""

import tvm

from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.hopper_attention_bwd import backward_kernel
from search_space.lowering.hopper_attention_bwd_ends import finish_kernel, prepare_kernel
from search_space.sketches.cuda_attention_bwd.space import plan
from search_space.target import Target
from search_space.workload import Workload


def lower(workload: Workload, target: Target, knobs: Knobs) -> Lowered:
    tile, launch = plan(workload, target, knobs)
    kernels = {"prepare": prepare_kernel(tile), "main": backward_kernel(tile), "finish": finish_kernel(tile)}
    return Lowered(tvm.IRModule(kernels), launch=launch)
