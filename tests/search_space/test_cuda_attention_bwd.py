"""The Hopper attention backward sketch without a GPU: what it refuses and allows; cubins keep to what is declared."""

import pytest

from search_space.attention import AttentionWorkload
from search_space.errors import InvalidField
from search_space.knob import Knobs
from search_space.registry import check_supported, generate_sketches
from search_space.sketch import legal_points
from search_space.sketches.cuda_attention_bwd.space import SKETCH, plan, query_tiles, tile_of
from search_space.target import Target
from tilewright.runtime.formula import evaluate
from workers.build import cuda
from workers.build.result import BuildToolMissing

H200 = Target(kind="cuda", arch="sm_90a", model="NVIDIA H200", cores=132, l2_bytes=60 << 20, shared_bytes=227 * 1024)
PLAIN: Knobs = {"consumers": 2, "q_stages": 2, "do_stages": 2, "ds_buffers": 2, "order": "heads"}


def workload(**changes: object) -> AttentionWorkload:
    data: dict[str, object] = {"batch": 2, "heads": 8, "seq": 1000, "head_dim": 128, "dtype": "bf16", "causal": True}
    return AttentionWorkload.from_json({**data, "pass": "backward", **changes})


def test_operands_are_those_of_the_second_pass() -> None:
    w = AttentionWorkload.from_json(
        {"heads_q": 8, "heads_kv": 2, "seq_q": 5, "seq_kv": 9, "head_dim": 64, "dtype": "bf16", "pass": "backward"}
    )
    assert [(o.name, o.shape, o.dtype) for o in w.inputs()] == [
        ("q", (1, 8, 5, 64), "bfloat16"),
        ("k", (1, 2, 9, 64), "bfloat16"),
        ("v", (1, 2, 9, 64), "bfloat16"),
        ("o", (1, 8, 5, 64), "bfloat16"),
        ("lse", (1, 8, 5), "float32"),
        ("do", (1, 8, 5, 64), "bfloat16"),
    ]
    assert [(o.name, o.shape) for o in w.outputs()] == [
        ("dq", (1, 8, 5, 64)),
        ("dk", (1, 2, 9, 64)),
        ("dv", (1, 2, 9, 64)),
    ]


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"head_dim": 80}, "head_dim", ("64", "128")),
        ({"head_dim": 256}, "head_dim", ("64", "128")),
        ({"head_dim_v": 64}, "head_dim_v", ("128",)),
        ({"dtype": "fp32"}, "dtype", ("bfloat16", "float16")),
        ({"window_left": 64}, "window_left", ("-1",)),
        ({"causal": False, "window_right": 5}, "window_right", ("-1",)),
        ({"softcap": 30.0}, "softcap", ("0",)),
        ({"kv_layout": "paged"}, "kv_layout", ("dense",)),
        ({"pass": "forward"}, "pass", ("backward",)),
    ],
)
def test_what_is_not_done_is_refused_by_its_field(
    changes: dict[str, object], field: str, allowed: tuple[str, ...]
) -> None:
    refused = SKETCH.refusal(workload(**changes), H200)
    assert refused is not None
    assert (refused.field, refused.allowed) == (field, allowed)


def test_backward_is_served_on_hopper_alone() -> None:
    assert [s.sketch.name for s in generate_sketches(workload(), H200)] == [SKETCH.name]
    with pytest.raises(InvalidField):
        check_supported(workload(), Target(kind="cpu", arch="znver3", model="EPYC", cores=2))
    with pytest.raises(InvalidField):
        check_supported(workload(), Target(kind="cuda", arch="sm_80", model="NVIDIA A100", cores=108))


def test_every_choice_is_judged_and_the_seeds_are_legal() -> None:
    assert SKETCH.violated(workload(), H200, {**PLAIN, "consumers": 1, "ds_buffers": 2}) is not None
    for dim in (64, 128):
        w = workload(head_dim=dim)
        (space,) = generate_sketches(w, H200)
        points = list(legal_points(space))
        assert points
        for knobs in points:
            c = tile_of(w, knobs)
            assert c.shared_bytes() * c.blocks_per_sm + 1024 * c.blocks_per_sm <= 228 * 1024
            producer, consumer = c.registers
            assert 128 * (producer + c.consumers * consumer) * c.blocks_per_sm <= 65536
            features = SKETCH.features(w, H200, knobs)
            assert 0.0 <= features["tile.waste"] < 1.0
        assert SKETCH.seeds(w, H200)
        assert all(SKETCH.violated(w, H200, s) is None for s in SKETCH.seeds(w, H200))


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(256, 256), (100, 700), (700, 100), (1, 130)])
def test_query_tiles_count_those_that_see_a_key(seq_q: int, seq_kv: int) -> None:
    w = AttentionWorkload.from_json(
        {
            "heads": 1,
            "seq_q": seq_q,
            "seq_kv": seq_kv,
            "head_dim": 64,
            "dtype": "bf16",
            "causal": True,
            "pass": "backward",
        }
    )
    c = tile_of(w, PLAIN)
    walked = 0
    for first_key in range(0, seq_kv, c.block_kv):
        seeing = [i for i in range(seq_q) if i + seq_kv - seq_q >= first_key]
        walked += len({i // c.block_q for i in range(min(seeing) // c.block_q * c.block_q, seq_q)})
    assert query_tiles(w, c) == walked


def test_the_launch_covers_the_padded_rows() -> None:
    w = AttentionWorkload.from_json(
        {"batch": 3, "heads_q": 4, "heads_kv": 2, "seq_q": 77, "seq_kv": 500, "head_dim": 64, "dtype": "bf16",
         "pass": "backward", "deterministic": True}
    )  # fmt: skip
    _, launch = plan(w, H200, PLAIN)
    names = {"batch": 3, "heads_q": 4, "heads_kv": 2, "seq_q": 77, "seq_kv": 500}
    sizes = {n: evaluate(space["nbytes"], names) for n, space in launch["workspace"].items()}
    assert sizes == {"delta": 12 * 128 * 4, "lse2": 12 * 128 * 4, "dq_sum": 12 * 128 * 64 * 4, "turns": 12 * 2 * 4}
    prepare, main, finish = (evaluate(k["grid"], names) for k in launch["kernels"])
    assert prepare * 256 * 8 == 12 * 128 * 64
    assert main == 4 * 3 * 2
    assert finish == 12 * 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cubins_neither_spill_nor_serialise(dim: int, deterministic: bool) -> None:
    from search_space.sketches.cuda_attention_bwd.lower import lower

    w = workload(head_dim=dim, deterministic=deterministic)
    try:
        for knobs in SKETCH.seeds(w, H200):
            built = cuda.build_cubin(lower(w, H200, knobs), H200, 120.0)
            assert not built.serialised, knobs
            assert all(r.spill_bytes == 0 for r in built.reports), knobs
            main = next(r for r in built.reports if r.symbol == "main_kernel")
            assert main.registers <= SKETCH.resources(w, H200, knobs).registers
    except BuildToolMissing as missing:
        pytest.skip(str(missing))
