"""The Hopper decode sketch without a GPU: its domain, how keys are cut into pieces, and that cubins keep to what is
declared."""

import math
from dataclasses import replace

import pytest

from search_space.attention import AttentionWorkload
from search_space.errors import InvalidField
from search_space.knob import Knobs
from search_space.registry import check_supported, generate_sketches
from search_space.sketches.cuda_attention_decode.space import SKETCH, most_stages, plan, tile_of
from search_space.target import Target
from tilewright.runtime.formula import evaluate
from workers.build import cuda
from workers.build.result import BuildToolMissing

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
PLAIN: Knobs = {
    "row_tiles": 1, "warps": 4, "warp_keys": 16, "stages": 4, "q_in": "registers", "blocks_per_sm": 1,
    "waves": 1, "schedule": "static", "dependent": True,
}  # fmt: skip


def workload(**changes: object) -> AttentionWorkload:
    data: dict[str, object] = {
        "batch": 2, "heads_q": 32, "heads_kv": 8, "seq_q": 1, "seq_kv": 5000, "head_dim": 128, "dtype": "bf16",
        "layout": "bshd",
    }  # fmt: skip
    return AttentionWorkload.from_json({**data, **changes})


def extents(w: AttentionWorkload) -> dict[str, int]:
    return {n: getattr(w, n) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"head_dim": 59}, "head_dim"),
        ({"head_dim": 264}, "head_dim"),
        ({"head_dim_v": 12}, "head_dim_v"),
        ({"dtype": "fp32"}, "dtype"),
        ({"scale": -1.0}, "scale"),
        ({"kv_layout": "paged"}, "kv_layout"),
        ({"pass": "backward"}, "pass"),
    ],
)
def test_what_is_not_done_is_refused_by_its_field(changes: dict[str, object], field: str) -> None:
    refused = SKETCH.refusal(workload(**changes), H200)
    assert refused is not None
    assert refused.field == field
    if field == "pass":  # another sketch's
        return
    with pytest.raises(InvalidField) as caught:
        check_supported(workload(**changes), H200)
    assert caught.value.field == field


def test_many_query_rows_are_left_to_the_forward_sketch() -> None:
    assert SKETCH.refusal(workload(seq_q=32, heads_q=32), H200) is None
    refused = SKETCH.refusal(workload(seq_q=33, heads_q=32), H200)
    assert refused is not None
    assert (refused.field, "132" in refused.reason) == ("seq_q", True)
    names = {s.sketch.name for s in generate_sketches(workload(), H200)}
    assert names == {"cuda_attention_decode", "cuda_attention_fwd"}


@pytest.mark.parametrize(
    ("data", "changes", "broken"),
    [
        ({"seq_q": 5}, {}, "row_tiles"),
        ({}, {"row_tiles": 8}, "warps"),
        ({}, {"warps": 8, "warp_keys": 64}, "box"),
        ({"head_dim": 256}, {"warps": 8}, "fragments"),
        ({}, {"stages": 7}, "shared_memory"),
        ({}, {"stages": 4, "blocks_per_sm": 2}, "shared_memory"),
        ({}, {"schedule": "dynamic"}, "schedule"),
        ({"seq_kv": 64}, {"waves": 2}, "waves"),
        ({"batch": 1 << 20}, {}, "index"),
    ],
)
def test_choices_that_cannot_work_are_told_before_lowering(
    data: dict[str, object], changes: Knobs, broken: str
) -> None:
    assert SKETCH.violated(workload(), H200, PLAIN) is None
    found = SKETCH.violated(workload(**data), H200, {**PLAIN, **changes})
    assert found is not None
    assert found.name == broken
    assert found.reason


@pytest.mark.parametrize("waves", [1, 3, 32])
@pytest.mark.parametrize(
    ("batch", "heads_kv", "seq_kv"), [(1, 1, 1), (1, 8, 8192), (1, 1, 65536), (5, 7, 333), (40, 8, 1000), (9, 16, 64)]
)
def test_pieces_cover_every_tile_once_and_fill_the_blocks(waves: int, batch: int, heads_kv: int, seq_kv: int) -> None:
    w = workload(batch=batch, heads_kv=heads_kv, heads_q=heads_kv * 4, seq_kv=seq_kv)
    knobs: Knobs = {**PLAIN, "waves": waves}
    tile, launch = plan(w, H200, knobs)
    kernel = launch["kernels"][0]
    values = {n: evaluate(a["value"], extents(w)) for n, a in kernel["arguments"].items() if a["kind"] == "int32"}
    tiles, length, pieces = values["unit_tiles"], values["length"], values["pieces"]
    assert tiles == math.ceil(seq_kv / 64)
    # As the kernel walks: piece p takes [p * length, min(tiles, (p + 1) * length)), none of them empty.
    walked = [t for p in range(pieces) for t in range(p * length, min(tiles, (p + 1) * length))]
    assert walked == list(range(tiles))
    assert (pieces - 1) * length < tiles
    units = batch * heads_kv
    assert values["items"] == units * pieces
    assert values["items"] <= max(132 * waves, units)
    assert evaluate(kernel["grid"], extents(w)) == values["grid"] == min(132, values["items"])
    partial = evaluate(launch["workspace"]["partial"]["nbytes"], extents(w))
    assert partial == (values["items"] * tile.piece_floats * 4 if pieces > 1 else 16)
    declared = sum(evaluate(x["nbytes"], extents(w)) for x in launch["workspace"].values())
    assert SKETCH.resources(w, H200, knobs).workspace_bytes == declared


def test_a_window_starts_at_the_first_key_that_the_first_row_sees() -> None:
    w = workload(seq_q=2, seq_kv=1000, causal=True, window_left=100)
    _, launch = plan(w, H200, PLAIN)
    arguments = launch["kernels"][0]["arguments"]
    assert evaluate(arguments["first"]["value"], extents(w)) == (1000 - 2 - 100) // 64
    assert evaluate(arguments["unit_tiles"]["value"], extents(w)) == math.ceil(1000 / 64) - 898 // 64
    assert SKETCH.traffic(w, H200, PLAIN).memory_bytes < SKETCH.traffic(workload(seq_kv=1000), H200, PLAIN).memory_bytes


@pytest.mark.parametrize("head_dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("seq_q", [1, 4, 16])
def test_seeds_are_legal_and_features_finite(head_dim: int, seq_q: int) -> None:
    w = workload(head_dim=head_dim, seq_q=seq_q, causal=True)
    seeds = SKETCH.seeds(w, H200)
    assert len(seeds) >= 2
    domains = {k.name: k.values for k in SKETCH.knobs(w, H200)}
    for knobs in seeds:
        assert SKETCH.violated(w, H200, knobs) is None
        assert all(knobs[name] in values for name, values in domains.items())
        assert all(math.isfinite(x) for x in SKETCH.features(w, H200, knobs).values())
        resources = SKETCH.resources(w, H200, knobs)
        assert resources.shared_bytes * int(knobs["blocks_per_sm"]) <= 227 * 1024
        assert resources.registers * resources.threads * int(knobs["blocks_per_sm"]) <= 65536


def test_predicted_traffic_reads_keys_once_whatever_the_split() -> None:
    w = workload()
    kv = 2 * 8 * 5000 * 2 * 128 * 2
    for waves in (1, 8):
        traffic = SKETCH.traffic(w, H200, {**PLAIN, "waves": waves})
        assert kv <= traffic.memory_bytes <= kv * 1.01
        assert traffic.memory_bytes < traffic.l2_bytes < kv * 1.2


# Per kind: the workload, the knobs; each fills its ring.
EDGES: tuple[tuple[dict[str, object], Knobs], ...] = (
    ({"lse": True}, {}),
    ({"head_dim": 64}, {"warps": 8}),
    ({"head_dim": 256, "seq_q": 3, "causal": True, "lse": True, "window_left": 100}, {"q_in": "shared"}),
    ({"head_dim": 192, "head_dim_v": 128, "dtype": "fp16"}, {"q_in": "shared", "warps": 2, "warp_keys": 32}),
    ({"seq_q": 16, "causal": True, "softcap": 30.0}, {"row_tiles": 4, "warps": 2, "q_in": "shared"}),
    ({}, {"warps": 2, "warp_keys": 32, "blocks_per_sm": 2}),
    ({"head_dim": 64}, {"blocks_per_sm": 3}),
    ({"head_dim": 80, "dtype": "fp16"}, {"warps": 1, "warp_keys": 64}),
)


def check_cubin(data: dict[str, object], changes: Knobs) -> None:
    from search_space.sketches.cuda_attention_decode.lower import lower

    w = workload(**data)
    knobs = most_stages(w, H200, {**PLAIN, **changes, "stages": 2})
    assert knobs is not None
    lowered = lower(w, H200, knobs)
    try:
        cuda.find_nvcc()
    except BuildToolMissing as error:
        pytest.skip(str(error))
    built = cuda.build_cubin(lowered, H200, timeout_s=240)
    (report,) = built.reports
    assert report.registers <= SKETCH.resources(w, H200, knobs).registers
    assert (report.spill_bytes, report.stack_bytes, report.shared_bytes) == (0, 0, 0)
    (kernel,) = built.launch["kernels"]
    assert {"q_ptr", "k_map", "v_map", "o_ptr", "partial_ptr", "counter_ptr"} <= set(kernel["parameters"])
    assert ("lse_ptr" in kernel["parameters"]) == w.lse


def test_a_cubin_stays_within_what_is_declared() -> None:
    check_cubin(*EDGES[0])


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES[1:])
def test_more_cubins_stay_within_what_is_declared(edge: tuple[dict[str, object], Knobs]) -> None:
    check_cubin(*edge)


def test_layouts_and_lengths_share_a_kernel() -> None:
    tiles = {replace(tile_of(w, PLAIN), layout="") for w in (workload(), workload(layout="bhsd", batch=7, seq_kv=100))}
    assert len(tiles) == 1
