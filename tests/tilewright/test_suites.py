"""Reading lists of workloads."""

import json
from pathlib import Path

import pytest

from search_space.registry import all_sketches  # noqa: F401  registers the ops
from search_space.workload import parse_workload
from tilewright.cli.suites import BadSuite, read_suite


def test_a_csv_of_gemms_becomes_tasks_with_weights(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text(
        "model,layer,phase,m,n,k,dtype,trans_b,source\n"
        "X,o_proj,decode,1,4096,4096,bf16,1,somewhere\n"
        "X,up,decode,1,28672,4096,bf16,0,somewhere\n"
        "X,o_proj again,decode,1,4096,4096,bf16,1,somewhere\n"
    )
    tasks = read_suite(file)
    assert [t["weight"] for t in tasks] == [2.0, 1.0]
    first, second = (parse_workload(t["workload"]) for t in tasks)
    assert first.to_json() == {
        "op": "gemm",
        "m": 1,
        "n": 4096,
        "k": 4096,
        "dtype_a": "bfloat16",
        "dtype_b": "bfloat16",
        "dtype_out": "bfloat16",
        "trans_b": True,
    }
    assert "trans_b" not in second.to_json()


def test_a_csv_of_attention_is_told_by_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "attention.csv"
    file.write_text(
        "suite,name,batch,heads_q,heads_kv,seq_q,seq_kv,head_dim,head_dim_v,causal,dtype\n"
        "s,n,1,32,8,2048,2048,128,128,1,fp16\n"
    )
    workload = parse_workload(read_suite(file)[0]["workload"])
    assert workload.to_json()["causal"] is True
    assert workload.to_json()["heads_kv"] == 8


def test_a_json_job_body_keeps_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    workload = {"op": "gemm", "m": 2, "n": 3, "k": 4, "dtype": "fp32"}
    file.write_text(json.dumps({"tasks": [{"workload": workload, "weight": 3.5}]}))
    assert read_suite(file) == [{"workload": workload, "weight": 3.5}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "m,n,k,dtype\n1,2,x,fp32\n", "line 2, column k: cannot read 'x'"),
        ("a.csv", "a,b\n1,2\n", "needs the columns"),
        ("a.csv", "m,n,k,dtype\n", "no workload"),
        ("a.json", "{", "Expecting"),
        ("a.json", "{}", "needs a list"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadSuite, match=message):
        read_suite(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSuite, match=r"nowhere\.csv"):
        read_suite(tmp_path / "nowhere.csv")
