"""The operators on a GPU: right answers from tuned kernels, on the current stream, in graphs, compiled, differentiated.

The schedules are those of `benchmarks.h200_operators`, for sm_90a; `--cuda-winners DIR` takes them prebuilt.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tilewright.torch as tw

CAN_RUN = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CAN_RUN, reason="needs a CUDA device of compute capability 9.0"),
]


@pytest.fixture(scope="module")
def cuda_winners(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = request.config.getoption("--cuda-winners", None)
    if given is not None:
        return Path(str(given))
    from benchmarks import h200_operators

    folder = tmp_path_factory.mktemp("cuda")
    h200_operators.emit(folder / "sources")
    h200_operators.pack(folder / "sources", folder / "winners")
    return folder / "winners"


@pytest.fixture(autouse=True)
def serving(cuda_winners: Path) -> Iterator[None]:
    tw.use(cuda_winners)
    torch.manual_seed(0)
    yield
    tw.clear()


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """bfloat16 results of float32 sums: one rounding of the output, and a little where terms cancel."""
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), rtol=2.0**-7, atol=0.03)


def test_every_kind_of_gemm_equals_float64() -> None:
    x, w, bias = rand(256, 512), rand(1024, 512), rand(1024)
    for m in (16, 128, 192):
        a, b = rand(m, 256), rand(256, 256)
        close(tw.matmul(a, b.t()), a.double() @ b.double().T)
        close(tw.linear(a.reshape(2, m // 2, 256), b), (a.double() @ b.double().T).reshape(2, m // 2, 256))
    close(tw.linear(x, w, bias, "gelu"), torch.nn.functional.gelu(x.double() @ w.double().T + bias.double()))
    a, b = rand(255, 77), rand(77, 129)
    close(tw.matmul(a, b), a.double() @ b.double())
    a, b = rand(3, 128, 256), rand(3, 256, 192)
    close(tw.matmul(a, b), a.double() @ b.double())
    assert (tw.counts().tuned, tw.counts().missed) == (9, 0)


def test_constant_weights_use_a_schedule_of_their_own() -> None:
    x, w = rand(16, 4096), rand(4096, 4096)
    for _ in range(3):
        close(tw.linear(x, w, weight_constant=True), x.double() @ w.double().T)
    assert tw.counts().tuned == 3
    tw.linear(x, w)
    assert tw.misses()[0].reason == "untuned"


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, left: int = -1) -> torch.Tensor:
    k, v = (t.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    seq_q, seq_kv = scores.shape[-2:]
    position = torch.arange(seq_q, device=q.device)[:, None] + seq_kv - seq_q
    key = torch.arange(seq_kv, device=q.device)[None, :]
    seen = (key <= position) if causal else key >= 0
    if left >= 0:
        seen = seen & (key >= position - left)
    return torch.nan_to_num(scores.masked_fill(~seen, float("-inf")).softmax(-1)) @ v


def test_attention_in_both_layouts_equals_float64() -> None:
    q, k, v = rand(2, 8, 500, 128), rand(2, 2, 700, 128), rand(2, 2, 700, 128)
    close(tw.attention(q, k, v, causal=True), attended(q, k, v, True))
    q, k, v = (rand(2, 320, heads, 64).transpose(1, 2) for heads in (8, 2, 2))
    out = tw.attention(q, k, v)
    close(out, attended(q, k, v, False))
    assert out.transpose(1, 2).is_contiguous()
    assert (tw.counts().tuned, tw.counts().missed) == (2, 0)


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "causal", "left"),
    [(256, 256, True, -1), (100, 300, True, -1), (300, 100, True, -1), (1, 300, True, -1), (256, 256, True, 64)],
)
def test_a_missed_attention_keeps_its_mask(seq_q: int, seq_kv: int, causal: bool, left: int) -> None:
    q, k, v = rand(1, 4, seq_q, 64), rand(1, 2, seq_kv, 64), rand(1, 2, seq_kv, 64)
    close(tw.attention(q, k, v, causal=causal, window_left=left), attended(q, k, v, causal, left))
    assert tw.counts().missed == 1


def test_a_softcap_without_a_schedule_runs_flex_attention() -> None:
    q, k, v = rand(1, 4, 256, 64), rand(1, 4, 256, 64), rand(1, 4, 256, 64)
    scores = (q.double() @ k.double().mT) / 8.0
    wanted = (5.0 * torch.tanh(scores / 5.0)).softmax(-1) @ v.double()
    close(tw.attention(q, k, v, softcap=5.0), wanted)


def test_an_address_that_is_not_aligned_runs_torch() -> None:
    flat, b = rand(128 * 256 + 1), rand(256, 256)
    a = flat[1:].view(128, 256)
    close(tw.matmul(a, b.t()), a.double() @ b.double().T)
    assert tw.misses()[0].reason == "alignment"


@pytest.mark.parametrize("m", [128, 192])
def test_the_current_stream_is_used_and_graphs_replay(m: int) -> None:
    a, b = rand(m, 256), rand(256, 256).t()
    wanted = a.double() @ b.double()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        a.neg_()
        found = tw.matmul(a, b)
    side.synchronize()
    close(found, -wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [tw.matmul(a, b) for _ in range(3)]
    for sign in (1.0, -1.0):
        a.neg_()
        for out in captured:
            out.fill_(float("nan"))
        graph.replay()
        for out in captured:
            close(out, sign * wanted)
    assert tw.counts().missed == 0


def test_threads_with_streams_of_their_own_get_right_answers() -> None:
    b = rand(256, 256).t()
    wrong: list[str] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for i in range(30):
                a = torch.full((192, 256), float(seed + i), device="cuda", dtype=torch.bfloat16)
                out = tw.matmul(a, b)
                stream.synchronize()
                if not torch.allclose(out.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0):
                    wrong.append(f"{seed} {i}")

    workers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert tw.counts().tuned == 120


def test_many_addresses_are_served() -> None:
    b = rand(256, 256).t()
    kept = [rand(128, 256) for _ in range(1500)]
    outs = [tw.matmul(a, b) for a in kept]
    for a, out in list(zip(kept, outs))[::100]:
        close(out, a.double() @ b.double())


def test_a_product_and_both_of_its_gradients_are_tuned() -> None:
    a, b = rand(256, 384, grad=True), rand(384, 512, grad=True)
    grad = rand(256, 512)
    tw.matmul(a, b).backward(grad)
    assert a.grad is not None
    assert b.grad is not None
    close(a.grad, grad.double() @ b.detach().double().T)
    close(b.grad, a.detach().double().T @ grad.double())
    assert (tw.counts().tuned, tw.counts().missed) == (3, 0)


@pytest.mark.parametrize("exact", [False, True])
def test_attention_and_its_gradients_are_tuned(exact: bool) -> None:
    torch.use_deterministic_algorithms(exact)
    try:
        q, k, v = rand(2, 8, 200, 128, grad=True), rand(2, 2, 333, 128, grad=True), rand(2, 2, 333, 128, grad=True)
        grad = rand(2, 8, 200, 128)
        out = tw.attention(q, k, v, causal=True)
        found = torch.autograd.grad(out, (q, k, v), grad)
    finally:
        torch.use_deterministic_algorithms(False)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(attended(*leaves, True), leaves, grad.double())
    for got, want in zip(found, wanted):
        assert float((got.double() - want).norm() / want.norm()) < 0.012
    assert (tw.counts().tuned, tw.counts().missed) == (2, 0)


def test_gradients_of_rows_outermost_attention_are_tuned() -> None:
    q, k, v = (rand(2, 256, heads, 64, grad=True) for heads in (8, 2, 2))
    tw.attention(*(t.transpose(1, 2) for t in (q, k, v))).sum().backward()
    leaves = [t.detach().double().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(attended(*leaves, False).sum(), leaves)
    for t, want in zip((q, k, v), wanted):
        assert t.grad is not None
        got = t.grad.double().transpose(1, 2)
        assert float((got - want).abs().max()) < 0.03 * float(want.abs().max()) + 0.05
    assert (tw.counts().tuned, tw.counts().missed) == (2, 0)


def test_a_missed_training_call_names_what_to_tune() -> None:
    q = rand(1, 2, 64, 64, grad=True)
    tw.attention(q, q, q).sum().backward()
    assert q.grad is not None
    missed = {(m.workload.get("lse", False), m.workload.get("pass", "forward")) for m in tw.misses()}
    assert missed == {(True, "forward"), (False, "backward")}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_programs_run_tuned_kernels(mode: str) -> None:
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        pytest.skip("torch.compile is disabled")
    a, b = rand(128, 256), rand(256, 256).t()
    with torch.no_grad():
        run = torch.compile(lambda x, y: torch.relu(tw.matmul(x + 1.0, y)) * 2.0, mode=mode, fullgraph=True)
        for _ in range(4):
            found = run(a, b)
    close(found, torch.relu((a + 1.0).double() @ b.double()) * 2.0)
    assert tw.counts().tuned >= 1
    assert tw.counts().missed == 0
