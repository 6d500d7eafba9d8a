"""The operators on real kernels: right on whatever a user passes, tuned where they may be, torch otherwise."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tilewright.torch as tw


@pytest.fixture(autouse=True)
def serving(winners: Path) -> Iterator[None]:
    assert tw.use(winners) == 6
    torch.manual_seed(0)
    yield
    tw.clear()


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def test_tuned_shapes_equal_the_float64_reference() -> None:
    a, b, w, bias = torch.randn(6, 7), torch.randn(7, 10), torch.randn(10, 7), torch.randn(10)
    close(tw.matmul(a, b), a.double() @ b.double())
    wanted = torch.nn.functional.gelu(a.double() @ w.double().T + bias.double())
    close(tw.linear(a, w, bias, "gelu"), wanted)
    close(tw.linear(a.reshape(2, 3, 7), w, bias, "gelu"), wanted.reshape(2, 3, 10))
    x, y = torch.randn(3, 6, 7), torch.randn(3, 7, 10)
    close(tw.matmul(x, y), x.double() @ y.double())
    close(tw.matmul(a[None], b[None]), (a.double() @ b.double())[None])
    assert (tw.counts().tuned, tw.counts().missed) == (5, 0)


def test_a_shape_on_which_the_vendor_won_runs_torch() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 4)
    assert torch.equal(tw.matmul(a, b), a @ b)
    assert (tw.counts().vendor, tw.counts().tuned) == (1, 0)


def test_a_miss_is_counted_by_its_shape() -> None:
    a, b = torch.randn(6, 8), torch.randn(8, 10)
    assert torch.equal(tw.matmul(a, b), a @ b)
    counts = tw.counts()
    assert counts.missed == 1
    assert dict(next(iter(counts.missed_shapes)))["k"] == 8
    (miss,) = tw.misses()
    assert (miss.device, miss.reason, miss.calls, miss.tunable) == ("cpu", "untuned", 1, True)
    tw.matmul(a, b)
    assert tw.misses()[0].calls == 2


A, B = torch.arange(42.0).reshape(6, 7), torch.arange(70.0).reshape(7, 10)
STRANGE: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "every second column": (lambda: A.repeat_interleave(2, 1)[:, ::2], lambda: B),
    "a broadcast row": (lambda: A[:1].expand(6, 7), lambda: B),
    "a transposed view": (lambda: A.T.contiguous().T, lambda: B.T.contiguous().T),
    "integers": (lambda: A.long(), lambda: B.long()),
    "float64": (lambda: A.double(), lambda: B.double()),
    "complex": (lambda: A.to(torch.complex64), lambda: B.to(torch.complex64)),
    "one vector": (lambda: A[0], lambda: B),
    "two vectors": (lambda: A[0], lambda: B[:, 0]),
    "a batch of one beside a batch of three": (lambda: A[None], lambda: B.expand(3, 7, 10)),
    "three batches beside one matrix": (lambda: A.expand(3, 6, 7), lambda: B),
    "no rows": (lambda: A[:0], lambda: B),
    "a negated view": (lambda: torch._neg_view(A), lambda: B),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_operands_get_torchs_answer(name: str) -> None:
    left, right = STRANGE[name]
    torch.testing.assert_close(tw.matmul(left(), right()), torch.matmul(left(), right()), rtol=1e-5, atol=1e-3)


REFUSED = {
    "every second column": "strides",
    "a broadcast row": "strides",
    "integers": "dtype int64",
    "complex": "dtype complex64",
    "one vector": "dimensions 1 and 2",
    "a batch of one beside a batch of three": "broadcast batch",
    "no rows": "empty",
    "a negated view": "not dense",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_no_schedule_could_serve_is_counted_with_the_reason(name: str) -> None:
    left, right = STRANGE[name]
    tw.matmul(left(), right())
    (miss,) = tw.misses()
    assert (miss.reason, miss.calls, miss.tunable) == (REFUSED[name], 1, False)
    assert tw.counts().missed == 1


def test_what_torch_refuses_is_refused() -> None:
    with pytest.raises(RuntimeError):
        tw.matmul(A.half(), B)
    with pytest.raises(RuntimeError):
        tw.matmul(A, A)
    with pytest.raises(RuntimeError):
        tw.linear(A, B.T.contiguous(), torch.zeros(11), "gelu")
    with pytest.raises(RuntimeError):
        tw.linear(A, B.T.contiguous(), torch.zeros(10, dtype=torch.float64), "gelu")
    with pytest.raises(ValueError, match="activation"):
        tw.linear(A, B.T, None, "tanh")


def test_gradients_flow_through_every_operand() -> None:
    for wanted in range(3):
        operands = [torch.randn(6, 7), torch.randn(10, 7), torch.randn(10)]
        operands[wanted].requires_grad_()
        tw.linear(*operands, "gelu").sum().backward()
        assert operands[wanted].grad is not None
    assert tw.counts().tuned == 0
    assert tw.misses()[0].reason == "gradient"
    with torch.no_grad():
        tw.linear(*operands, "gelu")
    assert tw.counts().tuned == 1


def test_a_tuned_product_is_differentiable() -> None:
    a, b = torch.randn(6, 7, requires_grad=True), torch.randn(7, 10, requires_grad=True)
    grad = torch.randn(6, 10)
    tw.matmul(a, b).backward(grad)
    assert tw.counts().tuned == 1
    assert a.grad is not None
    assert b.grad is not None
    close(a.grad, grad.double() @ b.detach().double().T)
    close(b.grad, a.detach().double().T @ grad.double())
    x, y = torch.randn(3, 6, 7, requires_grad=True), torch.randn(3, 7, 10, requires_grad=True)
    tw.matmul(x, y).sum().backward()
    assert tw.counts().tuned == 2
    assert y.grad is not None
    close(y.grad, x.detach().double().mT @ torch.ones(3, 6, 10).double())


def test_transforms_and_autocast_see_torchs_operators() -> None:
    a, b = torch.randn(4, 6, 7), torch.randn(7, 10)
    close(torch.vmap(lambda x: tw.matmul(x, b))(a), a.double() @ b.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert tw.matmul(a[0], b).dtype == torch.bfloat16
    (_, tangent) = torch.func.jvp(lambda x: tw.matmul(x, b), (a[0],), (torch.ones(6, 7),))
    close(tangent, torch.ones(6, 7).double() @ b.double())
    assert {m.reason for m in tw.misses()} >= {"autocast", "function transform"}


def test_constant_weights_are_packed_once_and_again_when_written() -> None:
    x, weight = torch.randn(6, 9), torch.randn(40, 9)
    for _ in range(2):
        close(tw.linear(x, weight, weight_constant=True), x.double() @ weight.double().T)
    assert tw.counts().tuned == 2
    weight.mul_(-2.0)
    close(tw.linear(x, weight, weight_constant=True), x.double() @ weight.double().T)
    close(tw.matmul(x, weight.T, b_constant=True), x.double() @ weight.double().T)
    assert tw.counts().tuned == 4
    close(tw.linear(x, weight), x.double() @ weight.double().T)
    assert tw.misses()[0].reason == "untuned"


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    k, v = (t.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    seq_q, seq_kv = scores.shape[-2:]
    if causal:
        hidden = torch.ones(seq_q, seq_kv, dtype=torch.bool).triu(seq_kv - seq_q + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ v


def qkv(batch: int = 1, seq_q: int = 5, seq_kv: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 4, seq_q, 8), torch.randn(batch, 2, seq_kv, 8), torch.randn(batch, 2, seq_kv, 8)


def test_attention_tuned_and_missed_agree_with_the_reference() -> None:
    q, k, v = qkv()
    close(tw.attention(q, k, v, causal=True), reference_attention(q, k, v, True))
    close(tw.attention(q, k, v, window_right=0), reference_attention(q, k, v, True))
    assert tw.counts().tuned == 2
    for more in (qkv(2), qkv(1, 9, 5), qkv(1, 7, 7)):
        close(tw.attention(*more, causal=True), reference_attention(*more, True))
        close(tw.attention(*more), reference_attention(*more, False))
    strided = q.mT.contiguous().mT
    close(tw.attention(strided, k, v, causal=True), reference_attention(q, k, v, True))
    assert tw.counts().tuned == 2


def test_attention_refuses_what_has_no_meaning() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="4 dimensions"):
        tw.attention(q[0], k[0], v[0])
    with pytest.raises(ValueError, match="window"):
        tw.attention(q, k, v, window_left=-3)
    with pytest.raises((RuntimeError, ValueError)):
        tw.attention(q, k, v[:, :, :4], causal=True)
