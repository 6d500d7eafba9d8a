"""The CPU's bed: what is accepted, what is rejected and why, and the vendor's kernel on every kind of workload."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from search_space.gemm import GemmWorkload
from search_space.workload import parse_workload
from tuner.outcome import Outcome
from tuner.ports import MeasurePolicy
from workers import bench
from workers.bench import Rejected
from workers.cpu_workbench import CpuBed, CpuWorkbench, Operands
from workers.misbehaving import MisbehavingKernel

GEMM = GemmWorkload(17, 33, 20, "float32", "float32", "float32")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Values are tested here, not times: no pool of threads that spins on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bed() -> Iterator[CpuBed]:
    bed = CpuBed(GEMM)
    yield bed
    bed.close()


class Kernel:
    """`compute(a, b) -> c`, stored as a kernel would."""

    exact = True

    def __init__(self, compute: Callable[[Any, Any], Any]) -> None:
        self._compute = compute

    def bind(self, operands: Operands) -> Callable[[], None]:
        a, b = operands.inputs

        def call() -> None:
            operands.outputs[0].copy_(self._compute(a, b))

        return call


def test_a_right_kernel_is_accepted_and_timed(bed: CpuBed) -> None:
    timing = bench.measure(bed, Kernel(torch.matmul), MeasurePolicy(time_share_s=0.05), None, time.monotonic)
    assert all(t > 0.0 for t in timing.run_secs)
    assert timing.max_rel_err is not None
    assert 0.0 <= timing.max_rel_err < 1e-3


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("write_nothing", "is nan"),
        ("write_half", "is nan"),
        ("accumulate", "is nan"),
        ("write_outside", "wrote after the memory of operand c"),
    ],
)
def test_a_kernel_that_stores_wrongly_is_rejected(bed: CpuBed, action: str, text: str) -> None:
    with pytest.raises(Rejected, match=text) as fault:
        bed.check(MisbehavingKernel(action))
    assert fault.value.outcome is Outcome.WRONG_ANSWER


def test_a_16_bit_accumulator_is_rejected(bed: CpuBed) -> None:
    def low(a: Any, b: Any) -> Any:
        return sum(
            (a[:, i : i + 1].bfloat16() * b[i : i + 1].bfloat16() for i in range(20)), start=torch.zeros(1)
        ).float()

    with pytest.raises(Rejected, match="elements are wrong"):
        bed.check(Kernel(low))


def test_a_kernel_wrong_on_the_adversarial_set_alone_is_rejected(bed: CpuBed) -> None:
    calls = iter(range(100))
    with pytest.raises(Rejected, match="adversarial inputs"):
        bed.check(Kernel(lambda a, b: a @ b if next(calls) == 0 else a @ b + 1.0))


def test_inputs_cannot_be_written(bed: CpuBed) -> None:
    """The memory is read-only: a kernel that tries ends with SIGSEGV (tests of the guards see it happen)."""
    address = bed.sets[0].inputs[0].data_ptr()
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps]
    rights = next(
        fields[1] for fields in spans if int(fields[0].split("-")[0], 16) <= address < int(fields[0].split("-")[1], 16)
    )
    assert rights.startswith("r--")


def test_a_bed_is_made_alike_every_time(bed: CpuBed) -> None:
    again = CpuBed(GEMM)
    for one, two in zip(bed.sets, again.sets, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one.inputs, two.inputs, strict=True))
    again.close()


VENDOR_WORKLOADS: list[dict[str, object]] = [
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "dtype": "float32"},
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "dtype": "float32", "trans_a": True, "trans_b": True},
    {"op": "gemm", "m": 1, "n": 64, "k": 32, "dtype": "float32", "trans_b": True, "b_constant": True},
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "batch": 3, "dtype": "float32", "epilogue": "bias+gelu"},
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "dtype": "float32", "epilogue": "bias"},
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "dtype": "float32", "epilogue": "bias+relu"},
    {"op": "gemm", "m": 7, "n": 9, "k": 11, "dtype": "float32", "epilogue": "bias+silu", "trans_b": True},
    {"op": "gemm", "m": 32, "n": 32, "k": 64, "dtype": "bfloat16"},
    {"op": "attention", "heads": 4, "seq": 16, "head_dim": 8, "dtype": "float32"},
    {"op": "attention", "heads": 4, "seq": 16, "head_dim": 8, "dtype": "float32", "causal": True},
    {"op": "attention", "heads": 4, "heads_kv": 2, "seq_q": 3, "seq_kv": 16, "head_dim": 8, "dtype": "float32",
     "causal": True},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "dtype": "float32", "causal": True, "window_left": 4},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "dtype": "float32", "window_left": 4, "window_right": 2},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "dtype": "float32", "softcap": 5.0, "causal": True},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "head_dim_v": 4, "dtype": "float32"},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "dtype": "float32", "layout": "bshd", "batch": 2},
    {"op": "attention", "heads": 2, "seq": 24, "head_dim": 8, "dtype": "float32", "lse": True, "scale": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("fields", VENDOR_WORKLOADS, ids=lambda f: "-".join(str(v) for v in f.values()))
def test_the_vendors_kernel_computes_the_workload(fields: dict[str, object]) -> None:
    heads_q = fields.pop("heads", None) if "heads_kv" in fields else None
    workbench = CpuWorkbench(parse_workload({**fields, "heads_q": heads_q} if heads_q else fields))
    name, kernel = workbench.vendor({})
    error = workbench.bed.check(kernel)
    assert name == "torch"
    assert workbench.vendor_note() is None, workbench.vendor_note()
    assert error < (1e-2 if fields["dtype"] == "bfloat16" else 1e-3)
    workbench.close()
