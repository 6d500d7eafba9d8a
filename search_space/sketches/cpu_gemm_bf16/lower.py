"""Lowers a choice of cpu_gemm_bf16."""

import tvm

from search_space.gemm import GemmWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering.bf16_pairs import pair_tiled
from search_space.sketches.cpu_gemm_bf16.space import SKETCH
from search_space.target import Target


def lower(workload: GemmWorkload, target: Target, knobs: Knobs) -> Lowered:
    plan = SKETCH.plan(workload, target, knobs)
    return Lowered(tvm.IRModule({"main": pair_tiled(plan, "avx512bf16" in target.features)}))
