"""Guarded buffers: what strays is found, whichever way it went."""

import ctypes
import signal
import subprocess
import sys

import pytest

from search_space.workload import Operand
from tuner.outcome import Outcome
from workers.bench import Rejected
from workers.guarded import ALIGNMENT, PAGE, GuardedBuffer

ODD = Operand("c", (7, 33), "float32", 4)


@pytest.mark.parametrize("shape", [(1,), (16,), (7, 33), (1024,), (1025, 3)])
@pytest.mark.parametrize("written", [False, True])
def test_the_data_is_aligned_and_whole(shape: tuple[int, ...], written: bool) -> None:
    buffer = GuardedBuffer(Operand("c", shape, "float32", 4), written)
    assert buffer.address % ALIGNMENT == 0
    buffer.write(bytes(range(256)) * (buffer.nbytes // 256) + bytes(buffer.nbytes % 256))
    assert buffer.damaged() is None
    buffer.free()


@pytest.mark.parametrize(
    ("offset", "side"), [(-1, "before"), (-64, "before"), (0, "after"), (63, "after"), (4095, "after")]
)
def test_a_byte_written_just_outside_is_found_and_the_guard_made_whole(offset: int, side: str) -> None:
    buffer = GuardedBuffer(ODD, written=True)
    place = buffer.address + offset + (buffer.nbytes if side == "after" else 0)
    ctypes.memset(place, 0, 1)
    with pytest.raises(Rejected, match=f"wrote {side} the memory of operand c") as fault:
        buffer.verify()
    assert fault.value.outcome is Outcome.WRONG_ANSWER
    buffer.verify()
    buffer.free()


def test_poison_is_nan_in_every_dtype() -> None:
    torch = pytest.importorskip("torch")
    buffer = GuardedBuffer(Operand("c", (8,), "float32", 4), written=True)
    buffer.poison()
    raw = torch.frombuffer(bytearray(buffer.view()), dtype=torch.uint8)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        assert raw.view(dtype).to(torch.float64).isnan().all()


_STRAY = """
import ctypes
from search_space.workload import Operand
from workers.guarded import PAGE, GuardedBuffer
buffer = GuardedBuffer(Operand("a", (64,), "float32", 4), written={written})
if {protect}:
    buffer.protect()
{action}
print("survived")
"""


@pytest.mark.parametrize(
    ("written", "protect", "action"),
    [
        (True, False, "ctypes.memset(buffer.address + buffer.nbytes + 2 * PAGE, 0, 1)"),
        (True, False, "ctypes.memset(buffer.address - 3 * PAGE, 0, 1)"),
        (False, False, "ctypes.string_at(buffer.address + buffer.nbytes, 1)"),
        (False, True, "ctypes.memset(buffer.address, 0, 1)"),
    ],
    ids=["write far after", "write far before", "read past an input", "write an input"],
)
def test_a_far_access_or_a_written_input_ends_the_process(written: bool, protect: bool, action: str) -> None:
    code = _STRAY.format(written=written, protect=protect, action=action)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "survived" not in done.stdout


def test_guards_are_at_least_a_page() -> None:
    assert PAGE >= 4096
