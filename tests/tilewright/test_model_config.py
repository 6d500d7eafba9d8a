"""A model's configuration becomes the shapes of its layers."""

import json
from pathlib import Path

import pytest

from search_space.workload import parse_workload
from tilewright.cli.model_config import BadModel, tasks_of_model
from tilewright.cli.suites import BadSuite, read_suite

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def test_a_llama_layer_has_four_products_at_each_row_count(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    tasks = read_suite(file)
    workloads = [parse_workload(t["workload"]).to_json() for t in tasks]  # type: ignore[arg-type]
    products = [(w["m"], w["n"], w["k"]) for w in workloads if w["op"] == "gemm"]
    layer = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    assert products == [(m, n, k) for m in (1, 8, 16, 512) for n, k in layer]
    assert all(w["trans_b"] and w["dtype_a"] == "bfloat16" for w in workloads if w["op"] == "gemm")
    attention = [(w["seq_q"], w["seq_kv"], w["heads_kv"], w["head_dim"]) for w in workloads if w["op"] == "attention"]
    assert attention == [(512, 512, 8, 128), (1, 512, 8, 128)]
    assert {t["weight"] for t in tasks} == {32.0}


def test_short_names_a_remark_after_the_dtype_and_an_ungated_layer() -> None:
    entry: dict[str, object] = {"hidden_size": 768, "intermediate_size": 3072, "num_layers": 12, "num_heads": 12}
    entry |= {"head_dim": 64, "max_position": 128, "mlp": "gelu", "compute_dtype": "fp16 (chosen here)"}
    found = [t["workload"] for t in tasks_of_model(entry)]
    shapes = {(w["n"], w["k"]) for w in found if w["op"] == "gemm"}  # type: ignore[index]
    assert shapes == {(2304, 768), (768, 768), (3072, 768), (768, 3072)}
    assert {w["dtype"] for w in found} == {"fp16"}  # type: ignore[index]
    assert max(w["m"] for w in found if w["op"] == "gemm") == 128  # type: ignore[index]


def test_gpt2_names_and_a_window_shorter_than_the_prefill() -> None:
    found = tasks_of_model({"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": None, "sliding_window": 100})
    attention = [t["workload"] for t in found if t["workload"]["op"] == "attention"]  # type: ignore[index]
    assert attention[0]["window_left"] == 99  # type: ignore[index]
    assert {t["workload"]["n"] for t in found[:4]} == {192, 64, 256}  # type: ignore[index]


def test_an_encoder_has_neither_a_causal_mask_nor_a_decode_attention() -> None:
    found = tasks_of_model({**LLAMA, "model_type": "bert", "hidden_act": "gelu"})
    attention = [t["workload"] for t in found if t["workload"]["op"] == "attention"]  # type: ignore[index]
    assert len(attention) == 1
    assert "causal" not in attention[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads: is missing"),
        ({"hidden_size": "big"}, "hidden_size: must be a whole number"),
        ({"hidden_size": True}, "hidden_size: must be a whole number"),
        ({"intermediate_size": -1}, "intermediate_size: must be a whole number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 32 query heads"),
        ({"hidden_size": 4095}, "hidden_size: 4095 is not a multiple"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"torch_dtype": 16}, "torch_dtype: must be the name"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        tasks_of_model({**LLAMA, **change})


def test_a_file_of_several_models_asks_for_one(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": {"A": LLAMA, "B": LLAMA}}))
    with pytest.raises(BadSuite, match="holds the models A, B"):
        read_suite(file)
    file.write_text("[1]")
    with pytest.raises(BadSuite, match="task 0 is not an object"):
        read_suite(file)
