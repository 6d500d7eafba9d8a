import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from synthetic import TARGET, Plain, Tiled, gemm

from cost_model.features import BASE_NAMES, FEATURE_SCHEMA, Rates, TaskContext, column_names, to_matrix
from search_space.knob import Knobs
from search_space.sketch import Traffic
from search_space.target import Target
from search_space.workload import Workload

KNOBS: Knobs = {"tile_m": 8, "tile_n": 32, "tile_k": 16, "unroll": 4, "pack": True, "order": "mnk"}


class Wild(Plain):
    """Says what no sketch should: infinities and NaN."""

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        return Traffic(math.inf, l1_bytes=math.nan)

    def features(self, workload: Workload, target: Target, knobs: Knobs) -> dict[str, float]:
        return {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 2.0}


def test_values_of_one_choice():
    f = TaskContext.of(gemm(64, 32, 16), TARGET, Rates(1e11, 2e10)).featurise(Tiled(), KNOBS)
    flops, least = 2 * 64 * 32 * 16, 4 * (64 * 16 + 16 * 32 + 64 * 32)
    assert f["log_flops"] == 16.0
    assert f["log_size.m"] == 6.0
    assert f["balance.memory"] == math.log2(flops / least)
    assert f["redundancy.memory"] == 1.0
    assert f["balance.l1"] == math.log2(1 / (2 * (1 / 8 + 1 / 32)))
    assert f["over.l3"] == math.log2(least / TARGET.l3_bytes)
    assert f["parallel.per_core"] == 8.0
    assert f["parallel.waste"] == 0.0
    assert f["knob.tile_n"] == 32.0
    assert f["knob.pack"] == 1.0
    assert f["knob.order=mnk"] == 1.0
    assert f["sketch.tiled"] == 1.0
    assert f["tile_area"] == 256.0
    assert f["roofline.predicted_log_time"] == math.log2(max(flops / 1e11, least / 2e10))
    assert "over.l1" not in f  # the sketch states no traffic from L2


def test_waste_of_the_last_wave():
    target = Target("cpu", "a", "m", cores=6)
    assert TaskContext.of(gemm(), target).featurise(Tiled(), KNOBS)["parallel.waste"] == 1.0 - 16 / 18


def test_every_name_is_declared():
    f = TaskContext.of(gemm(), TARGET, Rates(1e11, 2e10)).featurise(Tiled(), KNOBS)
    families = tuple(name[:-1] for name in BASE_NAMES if name.endswith("*"))
    undeclared = [n for n in f if n not in BASE_NAMES and not n.startswith(families) and n != "tile_area"]
    assert undeclared == []
    assert FEATURE_SCHEMA.startswith("1-")


def test_infinities_and_nan_never_get_in():
    f = TaskContext.of(gemm(), TARGET, Rates(0.0, 0.0)).featurise(Wild(), {"block": 1, "unroll": 1})
    assert all(math.isfinite(v) for v in f.values())
    assert f["d"] == 2.0
    assert not {"a", "b", "c", "log_bytes.memory"} & set(f)


def test_missing_is_nan_but_an_absent_one_hot_is_zero():
    rows = [{"x": 1.0, "sketch.a": 1.0}, {"y": 2.0, "order=mnk": 1.0}]
    assert column_names(rows) == ("order=mnk", "sketch.a", "x", "y")
    m = to_matrix(rows, ("order=mnk", "sketch.a", "x", "y"))
    np.testing.assert_array_equal(m, np.array([[0, 1, 1, np.nan], [1, 0, np.nan, 2]], dtype=np.float32))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=True, allow_infinity=True)), max_size=5))
def test_a_matrix_has_no_infinity(rows):
    assert not np.isinf(to_matrix(rows, ("a", "b", "z"))).any()
