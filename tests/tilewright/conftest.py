"""Schedules for the operators' tests, built here unless a folder of them is given."""

import json
from pathlib import Path
from typing import Any

import pytest

GEMM = {"op": "gemm", "m": 6, "n": 10, "k": 7, "dtype": "float32"}
LINEAR = {**GEMM, "trans_b": True, "epilogue": "bias+gelu"}
BATCHED = {**GEMM, "batch": 3}
CONSTANT = {"op": "gemm", "m": 6, "n": 40, "k": 9, "dtype": "float32", "trans_b": True, "b_constant": True}
ATTENTION = {
    "op": "attention", "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 9, "head_dim": 8, "causal": True,
    "dtype": "float32",
}  # fmt: skip
VENDOR = {"op": "gemm", "m": 3, "n": 4, "k": 5, "dtype": "float32"}
BUILT: tuple[tuple[dict[str, Any], str | None, str], ...] = (
    (GEMM, None, "tilewright"),
    (LINEAR, None, "tilewright"),
    (BATCHED, None, "tilewright"),
    (CONSTANT, "cpu_gemm_prepacked", "tilewright"),
    (ATTENTION, None, "tilewright"),
    (VENDOR, None, "vendor"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cuda-winners",
        help="folder of `benchmarks.h200_operators pack`, for a GPU machine without TVM (default: build them)",
    )


@pytest.fixture(scope="session")
def winners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `tilewright export --job` writes it, of CPU kernels built here."""
    import tvm

    from search_space.registry import generate_sketches
    from search_space.sketch import legal_points
    from search_space.target import Target
    from search_space.workload import parse_workload
    from tilewright.export import write_schedule
    from workers.build.build import build_candidate

    folder = tmp_path_factory.mktemp("winners")
    arch = str(tvm.target.codegen.llvm_get_system_cpu())
    target = Target("cpu", arch, "host", 2, 128, 32 << 10, 512 << 10, 8 << 20)
    entries = []
    for number, (data, sketch, served) in enumerate(BUILT):
        workload = parse_workload(data)
        space = next(s for s in generate_sketches(workload, target) if sketch in (None, s.sketch.name))
        built = build_candidate(workload, target, space.candidate(next(legal_points(space))))
        assert built.artifact is not None, built.error
        schedule = {"id": f"sch_{number}", "workload": workload.to_json(), "artifact": built.digest}
        detail = {"schedule": {**schedule, "target": target.to_json()}, "served": {"kind": served}, "environment": {}}
        entries.append(write_schedule(folder, detail, built.artifact)[1])
    (folder / "index.json").write_text(json.dumps({"schema": 1, "schedules": entries}))
    return folder
