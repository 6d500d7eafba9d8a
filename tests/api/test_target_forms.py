"""Every way to write a target or a dtype: one meaning, or refused at submit with what is allowed (cases O26)."""

import pytest
from fastapi.testclient import TestClient

from search_space import registry
from search_space.registry import all_sketches

GEMM = {"op": "gemm", "m": 4, "n": 8, "k": 16, "dtype": "fp32"}
ACCEPTED: list[object] = [
    "llvm",
    "cpu",
    "auto",
    None,
    {},
    {"kind": "llvm"},
    {"kind": "llvm", "num-cores": 2},
    {"kind": "cpu", "cores": 2},
    {"kind": "cpu", "mcpu": "znver3"},
    {"kind": "auto", "arch": "znver3", "model": "EPYC 7763"},
]
REFUSED: list[object] = [
    "",
    " ",
    "LLVM",
    "llvm -num-cores=2",
    "llvm -mcpu=znver3",
    "nvidia/h200",
    "cpu\u0000",
    "x" * 10_000,
    7,
    True,
    [],
    {"kind": "nonsense"},
    {"kind": ""},
    {"kind": None},
    {"kind": 5},
    {"kind": ["cpu"]},
    {"kind": "cpu", "cores": 0},
    {"kind": "cpu", "cores": "2"},
    {"kind": "cpu", "num-cores": True},
    {"kind": "cpu", "tag": "x"},
    {"cpu": "cpu"},
    {"kind": "cpu", "arch": ""},
    {"kind": "cpu", "arch": 3},
    {"kind": "cpu", "arch": "x" * 300},
]


def shortly(value: object) -> str:
    return str(value)[:40]


@pytest.mark.parametrize("target", ACCEPTED, ids=shortly)
def test_every_spelling_of_this_cpu_is_one_target(client: TestClient, target: object) -> None:
    """O26: TVM dies of {"kind": "llvm"} without num-cores; here the worker's host fills it in."""
    answer = client.post("/v1/jobs", json={"workload": GEMM, "target": target})
    assert answer.status_code == 201, answer.text
    assert answer.json()["target"]["kind"] in ("cpu", "auto")


@pytest.mark.parametrize("target", REFUSED, ids=shortly)
def test_no_other_form_of_a_target_gets_past_the_door(steady: TestClient, target: object) -> None:
    answer = steady.post("/v1/jobs", json={"workload": GEMM, "target": target})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"].startswith("target")
    assert steady.get("/v1/jobs").json()["items"] == []


def test_dtypes_have_one_name_and_what_no_cpu_does_is_refused_with_the_list(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "all_sketches", all_sketches)
    seen = []
    for dtype in ("bf16", "bfloat16"):
        answer = client.post("/v1/jobs", json={"workload": {**GEMM, "dtype": dtype}})
        assert answer.status_code == 201, answer.text
        seen.append(answer.json()["tasks"][0]["workload"])
    assert seen[0] == seen[1]
    assert seen[0]["dtype_a"] == "bfloat16"
    for dtype in ("fp8", "fp8_e4m3", "float17", "bfloat", "", "double", "int4"):
        answer = client.post("/v1/jobs", json={"workload": {**GEMM, "dtype": dtype}})
        assert answer.status_code == 422, dtype
        assert answer.json()["field"].startswith("workload."), dtype
        assert answer.json()["errors"][0]["allowed"], dtype
