"""The Hopper attention sketch without a GPU: what it refuses and allows, and that cubins keep to what is declared."""

import math

import pytest

from search_space.attention import AttentionWorkload
from search_space.errors import InvalidField
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.registry import check_supported, generate_sketches
from search_space.sketches.cuda_attention_fwd.space import SKETCH, plan
from search_space.target import Target
from tilewright.runtime.formula import evaluate
from workers.build import cuda
from workers.build.result import BuildToolMissing

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
PLAIN: Knobs = {
    "block_kv": 128, "stages": 2, "q_buffers": 2, "consumers": 2, "overlap": True, "pingpong": True, "pv_wait": "late",
    "rescale": "after", "lazy": 0, "diagonal": "skip", "epilogue": "tma", "schedule": "dynamic", "group": 4,
}  # fmt: skip


def workload(**changes: object) -> AttentionWorkload:
    data: dict[str, object] = {"batch": 2, "heads": 8, "seq": 1000, "head_dim": 128, "dtype": "bf16", "causal": True}
    return AttentionWorkload.from_json({**data, **changes})


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"head_dim": 60}, "head_dim", tuple(map(str, range(8, 257, 8)))),
        ({"head_dim": 576}, "head_dim", tuple(map(str, range(8, 257, 8)))),
        ({"head_dim_v": 65}, "head_dim_v", tuple(map(str, range(8, 257, 8)))),
        ({"scale": 0.0}, "scale", ()),
        ({"dtype": "fp32"}, "dtype", ("bfloat16", "float16")),
        ({"dtype": "fp8_e4m3"}, "dtype", ("bfloat16", "float16")),
        ({"kv_layout": "paged"}, "kv_layout", ("dense",)),
        ({"kv_layout": "packed"}, "kv_layout", ("dense",)),
        ({"pass": "backward"}, "pass", ("forward",)),
    ],
)
def test_what_is_not_done_is_refused_by_its_field(
    changes: dict[str, object], field: str, allowed: tuple[str, ...]
) -> None:
    refused = SKETCH.refusal(workload(**changes), H200)
    assert refused is not None
    assert (refused.field, refused.allowed) == (field, allowed)
    if "pass" in changes:  # another sketch's
        return
    with pytest.raises(InvalidField) as caught:
        check_supported(workload(**changes), H200)
    assert caught.value.field == field


def test_older_cards_are_refused_and_hopper_is_served() -> None:
    older = Target(kind="cuda", arch="sm_80", model="NVIDIA A100", cores=108)
    refused = SKETCH.refusal(workload(), older)
    assert refused is not None
    assert refused.field == "target.arch"
    assert [s.sketch.name for s in generate_sketches(workload(), H200)] == [SKETCH.name]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"consumers": 3}, "accumulators"),
        ({"consumers": 3, "block_kv": 80, "stages": 4}, "shared_memory"),
        ({"overlap": False, "pv_wait": "early"}, "pingpong"),
        ({"consumers": 1}, "pingpong"),
        ({"overlap": False, "pingpong": False}, "pv_wait"),
        ({"schedule": "single"}, "q_buffers"),
        ({"rescale": "under"}, "rescale"),
        ({"block_kv": 80, "diagonal": "half"}, "half"),
        ({"consumers": 1, "pingpong": False}, "one_consumer"),
    ],
)
def test_choices_that_cannot_work_are_told_before_lowering(changes: Knobs, broken: str) -> None:
    assert SKETCH.violated(workload(), H200, PLAIN) is None
    found = SKETCH.violated(workload(), H200, {**PLAIN, **changes})
    assert found is not None
    assert found.name == broken
    assert found.reason


def test_plain_stores_need_an_output_that_32_bits_index() -> None:
    direct: Knobs = {**PLAIN, "epilogue": "direct"}
    assert SKETCH.violated(workload(batch=256, heads=64, seq=1023), H200, direct) is None
    found = SKETCH.violated(workload(batch=256, heads=64, seq=1024), H200, direct)
    assert found is not None
    assert found.name == "index"


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_strides_of_both_layouts(layout: str) -> None:
    data = {"batch": 3, "heads_q": 8, "heads_kv": 2, "seq_q": 100, "seq_kv": 70, "head_dim": 64, "dtype": "fp16"}
    w = AttentionWorkload.from_json({**data, "layout": layout})
    names = {n: getattr(w, n) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")}
    knobs: Knobs = {**PLAIN, "diagonal": "mask"}
    tile, launch = plan(w, H200, knobs)
    arguments = launch["kernels"][0]["arguments"]
    for operand, shape in zip("qkvo", [o.shape for o in (*w.inputs(), *w.outputs())], strict=True):
        described = arguments[f"{operand}_map"]
        heads, rows = (shape[1], shape[2]) if layout == "bhsd" else (shape[2], shape[1])
        assert [evaluate(d, names) for d in described["dims"]] == [64, heads, rows, 3]
        row = 64 if layout == "bhsd" else 64 * heads
        head = 64 * rows if layout == "bhsd" else 64
        assert [evaluate(s, names) for s in described["strides"]] == [2 * head, 2 * row, 2 * 64 * heads * rows]
    assert evaluate(arguments["o_row"]["value"], names) == (64 if layout == "bhsd" else 512)
    assert evaluate(launch["kernels"][0]["grid"], names) == min(132, 3 * 8 * math.ceil(100 / tile.block_q))


def test_single_blocks_cover_every_tile_and_groups_never_exceed_the_heads() -> None:
    w = workload(batch=1, heads=2)
    names = {n: getattr(w, n) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")}
    _, launch = plan(w, H200, {**PLAIN, "schedule": "single", "q_buffers": 1, "group": 32})
    kernel = launch["kernels"][0]
    assert evaluate(kernel["grid"], names) == 2 * math.ceil(1000 / 128)
    assert evaluate(kernel["arguments"]["group"]["value"], names) == 2
    assert launch["workspace"] == {}
    assert plan(w, H200, PLAIN)[1]["workspace"] == {"counter": {"nbytes": 4, "zero": True}}


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_seeds_are_legal_and_features_finite(head_dim: int, causal: bool) -> None:
    w = workload(head_dim=head_dim, causal=causal, seq=4096)
    seeds = SKETCH.seeds(w, H200)
    assert len(seeds) >= 4
    domains = {k.name: k.values for k in SKETCH.knobs(w, H200)}
    for knobs in seeds:
        assert SKETCH.violated(w, H200, knobs) is None
        assert all(knobs[name] in values for name, values in domains.items())
        assert all(math.isfinite(x) for x in SKETCH.features(w, H200, knobs).values())
        assert SKETCH.traffic(w, H200, knobs).l2_bytes >= w.min_bytes()
        assert SKETCH.resources(w, H200, knobs).shared_bytes <= 227 * 1024


def test_half_of_the_products_are_wasted_on_a_causal_square_of_one_tile() -> None:
    w = workload(seq=128)
    waste = SKETCH.features(w, H200, PLAIN)["tile.waste"]
    assert waste == pytest.approx(1 - (128 * 129 / 2) / (128 * 128))


def lower(w: AttentionWorkload, knobs: Knobs) -> Lowered:
    from search_space.sketches.cuda_attention_fwd.lower import lower as lower_sketch

    return lower_sketch(w, H200, knobs)


EDGES: tuple[tuple[dict[str, object], Knobs], ...] = (
    ({"lse": True}, {}),
    ({"head_dim": 256, "dtype": "fp16"}, {"block_kv": 80, "q_buffers": 1, "epilogue": "direct", "lazy": 8}),
    ({"head_dim": 64, "causal": False}, {"consumers": 3, "diagonal": "mask", "schedule": "static", "pv_wait": "max"}),
    ({"causal": False}, {"block_kv": 176, "q_buffers": 1, "diagonal": "mask", "schedule": "static"}),
    ({}, {"diagonal": "half", "rescale": "under", "pv_wait": "max", "pingpong": False}),
    ({}, {"block_kv": 80, "consumers": 3, "rescale": "under", "pv_wait": "max"}),
    (
        {"head_dim": 64, "lse": True},
        {"block_kv": 64, "consumers": 1, "pingpong": False, "diagonal": "mask", "schedule": "single", "q_buffers": 1},
    ),
)


def check_cubin(changes: dict[str, object], knobs: Knobs) -> None:
    w, choice = workload(**changes), {**PLAIN, **knobs}
    assert SKETCH.violated(w, H200, choice) is None
    lowered = lower(w, choice)
    try:
        cuda.find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    built = cuda.build_cubin(lowered, H200, timeout_s=240)
    declared = SKETCH.resources(w, H200, choice)
    (report,) = built.reports
    # ptxas serialises some kernels that branch round wgmma: right all the same, and seldom fast.
    assert choice["diagonal"] == "half" or not built.serialised
    assert report.registers <= declared.registers
    assert (report.spill_bytes, report.stack_bytes, report.shared_bytes) == (0, 0, 0)


def test_the_kernel_takes_exactly_what_its_launch_describes() -> None:
    w = workload(lse=True)
    lowered = lower(w, PLAIN)
    source = cuda.cuda_source(lowered, H200)
    assert lowered.launch is not None
    (kernel,) = cuda.with_parameters(lowered.launch, source)["kernels"]
    assert {"q_map", "k_map", "v_map", "o_map", "lse_ptr", "counter_ptr"} <= set(kernel["parameters"])
    assert source.count("m64n128k16")
    assert "tw_pin" in source
    assert "tw_pin" not in cuda.cuda_source(lower(w, {**PLAIN, "pv_wait": "early"}), H200)


def test_a_cubin_stays_within_what_is_declared() -> None:
    check_cubin(*EDGES[0])


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES[1:])
def test_more_cubins_stay_within_what_is_declared(edge: tuple[dict[str, object], Knobs]) -> None:
    check_cubin(*edge)
