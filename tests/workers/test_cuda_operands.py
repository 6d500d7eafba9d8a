"""Rotating copies between canaries, on the CPU: what strays is named and mended, the rest of the copies stay."""

import pytest
import torch

from search_space.workload import Operand
from workers.cuda_operands import GUARD_BYTES, Copies, copies_wanted, damaged

OUT = Operand("c", (3, 5), "bfloat16", 2)
IN = Operand("a", (7, 3), "float32", 4)


def copies(operand: Operand, count: int = 3) -> Copies:
    return Copies(operand, count, device="cpu")


def test_each_copy_is_a_dense_aligned_tensor_of_its_own() -> None:
    made = copies(IN)
    made.fill(torch.arange(21.0).view(7, 3))
    first, second = made.tensor(0), made.tensor(1)
    assert first.is_contiguous()
    assert torch.equal(first, second)
    assert (second.data_ptr() - first.data_ptr()) % 256 == 0
    first[0, 0] = 9.0
    assert second[0, 0] == 0.0


def test_poison_is_nan_in_every_type() -> None:
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        made = copies(Operand("c", (4,), dtype, size))
        made.poison(1)
        assert bool(made.tensor(1).isnan().all())


@pytest.mark.parametrize("offset", [-1, OUT.nbytes, -GUARD_BYTES, OUT.nbytes + GUARD_BYTES - 1])
def test_a_byte_written_outside_is_found_and_mended(offset: int) -> None:
    out, made = copies(OUT), copies(IN)
    assert damaged([("c", out)], [("a", made)]) == []
    out._raw[2, GUARD_BYTES + offset] ^= 1
    assert damaged([("c", out)], [("a", made)]) == ["wrote outside the memory of operand c"]
    assert damaged([("c", out)], [("a", made)]) == []


def test_an_input_that_was_written_is_found_and_restored() -> None:
    out, made = copies(OUT), copies(IN)
    made.fill(torch.ones(7, 3))
    made.tensor(1)[6, 2] = 2.0
    assert damaged([("c", out)], [("a", made)]) == ["wrote to its input a"]
    assert torch.equal(made.tensor(1), torch.ones(7, 3))


def test_copies_leave_l2_behind_and_fit_the_memory() -> None:
    mib = 1 << 20
    assert copies_wanted(24 * mib, 60 * mib, 1 << 37) == 10
    assert copies_wanted(1 << 30, 60 * mib, 1 << 37) == 2
    assert copies_wanted(100, 60 * mib, 1 << 37) == 512
    assert copies_wanted(24 * mib, 60 * mib, 100 * mib) == 2
    assert copies_wanted(1 << 30, 60 * mib, 1 << 29) == 1
