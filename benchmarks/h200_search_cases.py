"""The workloads of `benchmarks.h200_search`: what a full search is run on, by name."""

from collections.abc import Mapping

Fields = Mapping[str, object]


def _gemm(m: int, n: int, k: int, **more: object) -> Fields:
    return {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "bfloat16", "trans_b": True, **more}


def _attention(batch: int, heads: int, seq: int, head_dim: int, **more: object) -> Fields:
    shape = {"batch": batch, "heads_q": heads, "heads_kv": heads, "seq_q": seq, "seq_kv": seq, "head_dim": head_dim}
    return {"op": "attention", "dtype": "bfloat16", **shape, **more}


# Layers of Llama-3.1-8B and -70B at decode and prefill, squares, and what libraries neglect.
GEMM: Mapping[str, Fields] = {
    "decode-16": _gemm(16, 6144, 4096),
    "prefill-4096": _gemm(4096, 4096, 4096),
    "decode-1": _gemm(1, 4096, 14336),
    "decode-64": _gemm(64, 28672, 8192),
    "decode-128": _gemm(128, 10240, 8192),
    "unaligned": _gemm(4097, 4095, 1000),
    "prefill-512": _gemm(512, 4096, 4096),
    "prefill-2048": _gemm(2048, 6144, 4096),
    "prefill-8192": _gemm(8192, 8192, 8192),
    "batch-32": _gemm(512, 512, 512, batch=32),
    "unaligned-odd": _gemm(2047, 2047, 2047),
    "epilogue": _gemm(1024, 4096, 1024, epilogue="bias+gelu"),
}
# The table of FlashAttention-3's paper at 16,384 tokens and 2048 hidden, grouped queries, and a ragged pair of lengths.
ATTENTION: Mapping[str, Fields] = {
    "long-128": _attention(1, 16, 16384, 128),
    "long-causal-128": _attention(1, 16, 16384, 128, causal=True),
    "gqa-causal-128": _attention(4, 32, 2048, 128, heads_kv=8, causal=True),
    "short-64": _attention(32, 32, 512, 64),
    "middle-causal-64": _attention(4, 32, 4096, 64, causal=True),
    "middle-256": _attention(4, 8, 4096, 256),
    "short-causal-128": _attention(16, 16, 1024, 128, causal=True),
    "ragged": _attention(2, 16, 700, 128, seq_kv=1900, causal=True),
}
CASES: Mapping[str, Fields] = {**GEMM, **ATTENTION}
