"""One lowering as readable TIR: a change of structure shows as a diff, and asks for a new sketch version."""

from pathlib import Path

from search_space.gemm import GemmWorkload
from search_space.sketches.cpu_gemm_packed.lower import lower
from search_space.target import Target

GOLDEN = Path(__file__).parent / "golden" / "cpu_gemm_packed.txt"
KNOBS = {
    "mr": 2,
    "nv": 1,
    "ku": 1,
    "kc": 20,
    "nb": 2,
    "m_chunks": 1,
    "n_inner": True,
    "pack_a": "none",
    "pack_b": "block",
}


def test_packed_gemm_lowers_to_the_recorded_program() -> None:
    target = Target("cpu", "znver3", "any", 2, 256, features=("avx2",))
    workload = GemmWorkload(5, 20, 40, "float32", "float32", "float32", epilogue="bias+relu")
    script = lower(workload, target, KNOBS).module["main"].script()
    assert script.strip() == GOLDEN.read_text().strip()
