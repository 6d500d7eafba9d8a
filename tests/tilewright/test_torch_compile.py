"""The operators under torch.compile, torch.export and torch's own checks of a custom operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tilewright.torch as tw


@pytest.fixture(autouse=True)
def serving(winners: Path) -> Iterator[None]:
    tw.use(winners)
    torch.manual_seed(0)
    yield
    tw.clear()
    torch.compiler.reset()


def compiled(function: object) -> object:
    """Traced whole (fullgraph) and differentiated ahead, run without a compiler."""
    return torch.compile(function, backend="aot_eager", fullgraph=True)  # type: ignore[call-overload]


def test_a_compiled_program_runs_the_tuned_kernels() -> None:
    w, bias = torch.randn(10, 7), torch.randn(10)

    def program(a: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return tw.linear(tw.matmul(a, w.t()) @ w, w, bias, "gelu").sum() + tw.attention(q, k, k, causal=True).sum()

    a, q, k = torch.randn(6, 7), torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8)
    expected = program(a, q, k)
    tw.clear()
    untuned = program(a, q, k)
    torch.testing.assert_close(expected, untuned, rtol=1e-4, atol=1e-4)
    assert tw.counts().tuned == 0


def test_the_table_is_looked_up_when_the_program_runs(winners: Path) -> None:
    a, b = torch.randn(6, 7), torch.randn(7, 10)
    run = compiled(lambda x, y: tw.matmul(x, y) + 1.0)
    wanted = a.double() @ b.double() + 1.0
    torch.testing.assert_close(run(a, b).double(), wanted, rtol=1e-5, atol=1e-5)  # type: ignore[operator]
    assert (tw.counts().tuned, tw.counts().missed) == (1, 0)
    tw.clear()
    torch.testing.assert_close(run(a, b).double(), wanted, rtol=1e-5, atol=1e-5)  # type: ignore[operator]
    assert (tw.counts().tuned, tw.counts().missed) == (0, 1)


def test_compiled_linear_and_attention_are_tuned() -> None:
    x, w, bias = torch.randn(2, 3, 7), torch.randn(10, 7), torch.randn(10)
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8)
    run = compiled(lambda: (tw.linear(x, w, bias, "gelu"), tw.attention(q, k, k, causal=True)))
    y, o = run()  # type: ignore[operator]
    assert tw.counts().tuned == 2
    wanted = torch.nn.functional.gelu(x.double() @ w.double().T + bias.double())
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
    tw.clear()
    torch.testing.assert_close(o, tw.attention(q, k, k, causal=True), rtol=1e-5, atol=1e-5)


def test_a_compiled_program_is_differentiated() -> None:
    a, b = torch.randn(6, 7, requires_grad=True), torch.randn(7, 10, requires_grad=True)
    run = compiled(lambda x, y: tw.matmul(x, y).square().sum())
    run(a, b).backward()  # type: ignore[operator]
    assert tw.counts().tuned == 1
    product = a.detach().double() @ b.detach().double()
    assert a.grad is not None
    torch.testing.assert_close(a.grad.double(), 2.0 * product @ b.detach().double().T, rtol=1e-5, atol=1e-4)


def test_shapes_that_vary_are_traced_once_as_symbols() -> None:
    run = torch.compile(lambda x, y: tw.matmul(x, y), backend="aot_eager", fullgraph=True, dynamic=True)
    b = torch.randn(7, 10)
    for m in (5, 6, 9):
        a = torch.randn(m, 7)
        torch.testing.assert_close(run(a, b), a @ b)
    assert (tw.counts().tuned, tw.counts().missed) == (1, 2)


def test_an_exported_program_holds_the_operator() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return tw.matmul(a, b)

    exported = torch.export.export(Model(), (torch.randn(6, 7), torch.randn(7, 10)))
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names == ["tilewright.matmul.default"]


OPERATORS = torch.ops.tilewright
CHECKED = {
    "matmul": (OPERATORS.matmul.default, lambda: (torch.randn(6, 7), torch.randn(7, 10))),
    "matmul, transposed": (OPERATORS.matmul.default, lambda: (torch.randn(7, 6).T, torch.randn(10, 7).T)),
    "matmul, batched": (OPERATORS.matmul.default, lambda: (torch.randn(3, 6, 7), torch.randn(3, 7, 10))),
    "matmul, gradient": (
        OPERATORS.matmul.default,
        lambda: (torch.randn(2, 6, 7, requires_grad=True), torch.randn(7, 10, requires_grad=True)),
    ),
    "linear": (OPERATORS.linear.default, lambda: (torch.randn(6, 7), torch.randn(10, 7), torch.randn(10), "gelu")),
    "linear, gradient": (
        OPERATORS.linear.default,
        lambda: tuple(torch.randn(s, requires_grad=True) for s in ((6, 7), (10, 7), (10,))),
    ),
    "attention": (
        OPERATORS.attention.default,
        lambda: (torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), True),
    ),
    "attention, rows outermost": (
        OPERATORS.attention.default,
        lambda: tuple(torch.randn(2, 6, 4, 8).transpose(1, 2) for _ in range(3)),
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_torchs_checks_of_a_custom_operator(name: str) -> None:
    operator, arguments = CHECKED[name]
    torch.library.opcheck(operator, arguments())
