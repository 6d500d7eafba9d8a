"""The operators on real kernels: right on whatever a user passes, tuned where they may be, torch otherwise."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import tvm

import tilewright.torch as tw
from search_space.registry import generate_sketches
from search_space.sketch import legal_points
from search_space.target import Target
from search_space.workload import parse_workload
from tilewright.export import write_schedule
from tilewright.runtime import ArtifactError
from workers.build.build import build_candidate

GEMM = {"op": "gemm", "m": 6, "n": 10, "k": 7, "dtype": "float32"}
LINEAR = {**GEMM, "trans_b": True, "epilogue": "bias+gelu"}
BATCHED = {**GEMM, "batch": 3}
ATTENTION = {"op": "attention", "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 9, "head_dim": 8, "causal": True}
VENDOR = {"op": "gemm", "m": 3, "n": 4, "k": 5, "dtype": "float32"}


@pytest.fixture(scope="module")
def winners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `tilewright export --job` writes it, of kernels built here."""
    folder = tmp_path_factory.mktemp("winners")
    arch = str(tvm.target.codegen.llvm_get_system_cpu())
    target = Target("cpu", arch, "host", 2, 128, 32 << 10, 512 << 10, 8 << 20)
    entries = []
    attention = {**ATTENTION, "dtype": "float32"}
    for number, (data, served) in enumerate(
        [(d, "tilewright") for d in (GEMM, LINEAR, BATCHED, attention)] + [(VENDOR, "vendor")]
    ):
        workload = parse_workload(data)
        space = generate_sketches(workload, target)[0]
        built = build_candidate(workload, target, space.candidate(next(legal_points(space))))
        assert built.artifact is not None, built.error
        schedule = {"id": f"sch_{number}", "workload": workload.to_json(), "artifact": built.digest}
        detail = {"schedule": {**schedule, "target": target.to_json()}, "served": {"kind": served}, "environment": {}}
        entries.append(write_schedule(folder, detail, built.artifact)[1])
    (folder / "index.json").write_text(json.dumps({"schema": 1, "schedules": entries}))
    return folder


@pytest.fixture(autouse=True)
def serving(winners: Path) -> Iterator[None]:
    assert tw.use(winners) == 5
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
    with torch.no_grad():
        tw.linear(*operands, "gelu")
    assert tw.counts().tuned == 1


def test_transforms_and_autocast_see_torchs_operators() -> None:
    a, b = torch.randn(4, 6, 7), torch.randn(7, 10)
    close(torch.vmap(lambda x: tw.matmul(x, b))(a), a.double() @ b.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert tw.matmul(a[0], b).dtype == torch.bfloat16
    (_, tangent) = torch.func.jvp(lambda x: tw.matmul(x, b), (a[0],), (torch.ones(6, 7),))
    close(tangent, torch.ones(6, 7).double() @ b.double())


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


def test_a_damaged_folder_is_refused_and_the_table_stays(winners: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no index"):
        tw.use(tmp_path)
    for text in ("{", "[]", '{"schedules": [1]}', '{"schedules": [{}]}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(ArtifactError, match="damaged"):
            tw.use(tmp_path)
    index = json.loads((winners / "index.json").read_text())
    for entry in index["schedules"]:
        file = tmp_path / entry["file"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((winners / entry["file"]).read_bytes()[:-7])
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match="re-export"):
        tw.use(tmp_path)
    tw.matmul(A, B)
    assert tw.counts().tuned == 1
