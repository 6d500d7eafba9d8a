"""The GEMM shapes of the H200 race: linear layers of five models in bfloat16, unaligned sizes, and squares."""

import csv
import json
from dataclasses import replace
from pathlib import Path

from search_space.gemm import GemmWorkload

MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-7B", "Mixtral-8x7B-v0.1", "DeepSeek-V3")
_CSV = Path(__file__).parent / "workloads" / "llm_gemm.csv"


def model_workloads(path: Path = _CSV) -> list[GemmWorkload]:
    """Each (m, n, k) of the models' bfloat16 layers once, smallest weights first. Weights are constant."""
    found: dict[tuple[int, int, int], GemmWorkload] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["model"] in MODELS and row["dtype"] == "bf16":
                data = {name: int(row[name]) for name in ("m", "n", "k")}
                flags = {"dtype": "bf16", "trans_b": row["trans_b"] == "1", "b_constant": True}
                workload = GemmWorkload.from_json({**data, **flags})
                found[workload.m, workload.n, workload.k] = workload
    return sorted(found.values(), key=lambda w: (w.n * w.k, w.m))


def unaligned_workloads() -> list[GemmWorkload]:
    """Rows that are not 16-byte aligned, B stored [n, k]; nothing known ahead, so every copy is inside the time."""
    sizes = ((4097, 4095, 1000), (4095, 4095, 4095), (1001, 1003, 1000), (2047, 2047, 2047))
    return [GemmWorkload.from_json({"m": m, "n": n, "k": k, "dtype": "bf16", "trans_b": True}) for m, n, k in sizes]


def square_workloads() -> list[GemmWorkload]:
    return [
        GemmWorkload.from_json({"m": s, "n": s, "k": s, "dtype": "bf16", "trans_b": True})
        for s in (512, 1024, 2048, 4096, 8192)
    ]


def layout_workloads() -> list[GemmWorkload]:
    """Small ragged sizes over every layout, type, batch and epilogue: for checking, not for speed."""
    base = GemmWorkload.from_json({"m": 200, "n": 328, "k": 456, "dtype": "bf16"})
    out = [
        replace(base, trans_a=ta, trans_b=tb, batch=batch)
        for ta in (False, True)
        for tb in (False, True)
        for batch in (1, 3)
    ]
    out += [replace(base, trans_b=True, epilogue=e) for e in ("bias", "bias+gelu", "bias+relu", "bias+silu")]
    half = {"dtype_a": "float16", "dtype_b": "float16", "dtype_out": "float16"}
    out.append(replace(base, trans_b=True, **half))
    out += [replace(base, m=24, trans_b=tb, epilogue=e) for tb in (False, True) for e in ("none", "bias+gelu")]
    out += [replace(base, m=201, n=329, k=455, trans_a=ta, trans_b=not ta, epilogue="bias") for ta in (False, True)]
    out.append(replace(base, m=67, n=331, k=453, batch=2, trans_b=True))
    return out


def is_among(w: GemmWorkload, shapes: Path) -> bool:
    """Whether the JSON file's list of [m, n, k] names this shape of a model's layer."""
    return w.b_constant and [w.m, w.n, w.k] in json.loads(shapes.read_text())
