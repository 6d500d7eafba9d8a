"""CUDA kernels written by hand, as artifacts: one that is right, and one for each way to misbehave on a GPU."""

from search_space.gemm import GemmWorkload
from search_space.target import Target
from tilewright.runtime import Artifact
from workers.build.cuda import compile_source

WORKLOAD = GemmWorkload.from_json({"m": 96, "n": 160, "k": 512, "dtype": "bf16", "trans_b": True})

_HEAD = """
#include <cuda_bf16.h>
using T = __nv_bfloat16;
constexpr int M = {m}, N = {n}, K = {k};
extern "C" __global__ void plain(T* A, T* B, T* C) {{
  int at = blockIdx.x * blockDim.x + threadIdx.x, i = at / N, j = at % N;
  if (at >= M * N) return;
"""
_DOT = "c += __bfloat162float(A[i * K + k]) * __bfloat162float(B[j * K + k]);"
_SUM = f"  float c = 0.f; for (int k = 0; k < K; ++k) {_DOT}"
_STORE = "  C[at] = __float2bfloat16(c);"
BODIES = {
    "right": f"{_SUM}\n{_STORE}",
    "hang": "  volatile int* stop = (volatile int*)C; while (*stop != 0x12345678) { }",
    "illegal": f"  ((volatile int*)0x10)[at] = 1;\n{_SUM}\n{_STORE}",
    "outside": f"{_SUM}\n{_STORE}\n  if (at == M * N - 1) C[at + 1] = C[at];",
    "spoils_input": f"{_SUM}\n{_STORE}\n  __syncthreads(); if (at == 0) A[5] = C[at];",
    "forgets": f"{_SUM}\n  if (at != 77) C[at] = __float2bfloat16(c);",
    "rounds": "  T c = __float2bfloat16(0.f);\n"
    "  for (int k = 0; k < K; ++k) c = __float2bfloat16(__bfloat162float(c)"
    " + __bfloat162float(A[i * K + k]) * __bfloat162float(B[j * K + k]));\n  C[at] = c;",
}


def artifact(name: str, target: Target, workload: GemmWorkload = WORKLOAD, workspace_bytes: int = 0) -> bytes:
    """The kernel `name` of BODIES for `workload`, which must be a plain product with B stored [n, k]."""
    source = _HEAD.format(m=workload.m, n=workload.n, k=workload.k) + BODIES[name] + "\n}\n"
    cubin, _ = compile_source(source, target.arch)
    arguments = {name: {"kind": "pointer", "operand": name.lower()} for name in "ABC"}
    kernel = {
        "symbol": "plain",
        "grid": -(-workload.m * workload.n // 128),
        "block": 128,
        "cluster": 1,
        "shared_bytes": 0,
        "dependent": False,
        "arguments": arguments,
        "parameters": list("ABC"),
    }
    workspace = {"space": {"nbytes": workspace_bytes, "zero": False}} if workspace_bytes else {}
    manifest = {
        "schema": 1,
        "kind": "cubin",
        "workload": workload.to_json(),
        "candidate": {"sketch": "plain", "version": 1, "knobs": {"body": name}},
        "target": target.to_json(),
        "inputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in workload.inputs()],
        "outputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in workload.outputs()],
        "prepack": [],
        "launch": {"workspace": workspace, "kernels": [kernel]},
    }
    return Artifact(manifest, {"kernel.cubin": cubin}).to_bytes()
