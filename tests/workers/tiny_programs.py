"""Small programs written by hand, to build and run without any sketch."""

from tvm.ir import IRModule
from tvm.script import tirx as T

from search_space.lowered import Lowered, Prepack


def gemm(m, n, k):
    """C = A @ B with a parallel loop over rows, and a workspace too large for the stack in each task."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((m, k), "float32"), B: T.Buffer((k, n), "float32"), C: T.Buffer((m, n), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i in T.parallel(m):
            row = T.alloc_buffer((n, 64), "float32")
            for j in range(n):
                row[j, 0] = T.float32(0)
            for p in range(k):
                for j in range(n):
                    row[j, 0] = row[j, 0] + A[i, p] * B[p, j]
            for j in range(n):
                C[i, j] = row[j, 0]

    return Lowered(IRModule({"main": main}))


def gemm_prepacked(m, n, k):
    """The same with B packed ahead as its transpose."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((m, k), "float32"), B: T.Buffer((n, k), "float32"), C: T.Buffer((m, n), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i in T.parallel(m):
            for j in range(n):
                C[i, j] = T.float32(0)
                for p in range(k):
                    C[i, j] = C[i, j] + A[i, p] * B[j, p]

    @T.prim_func(s_tir=True)
    def pack_b(B: T.Buffer((k, n), "float32"), P: T.Buffer((n, k), "float32")):
        T.func_attr({"global_symbol": "pack_b", "tirx.noalias": True})
        for j in T.parallel(n):
            for p in range(k):
                P[j, p] = B[p, j]

    return Lowered(IRModule({"main": main, "pack_b": pack_b}), (Prepack("b", "pack_b", 4 * n * k),))


def vectorised_copy(n):
    """C = A + B over [n, 8], in 8-lane vectors: aligned loads would fault on an odd address."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((n, 8), "float32"), B: T.Buffer((n, 8), "float32"), C: T.Buffer((n, 8), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i in T.parallel(n):
            for v in T.vectorized(8):
                C[i, v] = A[i, v] + B[i, v]

    return Lowered(IRModule({"main": main}))
