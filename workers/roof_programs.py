"""The programs whose speed is a roof: multiply-adds that never leave the registers, and reads that do nothing else.

Bodies are TVMScript: parsed by TVM, not run by Python.
"""

from typing import Any

from tvm.ir import IRModule
from tvm.script import tirx as T

# TVM widens bfloat16 before it multiplies; the pair product of AVX512-BF16 is reached through LLVM IR.
_DOT_PAIRS = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @roof_dot_pairs(<16 x float> %c, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %c, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""
_READ_VECTORS = 8  # independent sums, so that no addition waits for the one before


def multiply_add(tasks: int, vectors: int, lanes: int, count: int) -> IRModule:
    """X [2, lanes], Y [tasks, lanes]: each task makes `count` rounds of sum = sum * X[0] + X[1] on `vectors` sums:
    2 * tasks * vectors * lanes * count floating-point operations."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((2, lanes), "float32"), Y: T.Buffer((tasks, lanes), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for task in T.parallel(tasks):
            sums = T.alloc_local((vectors * lanes,), "float32")
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    sums[i * lanes + v] = X[1, v] * T.Cast("float32", i + 1)
            for _ in range(count):
                for i in T.unroll(vectors):
                    for v in T.vectorized(lanes):
                        sums[i * lanes + v] = sums[i * lanes + v] * X[0, v] + X[1, v]
            for v in T.vectorized(lanes):
                Y[task, v] = T.float32(0)
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    Y[task, v] = Y[task, v] + sums[i * lanes + v]

    return IRModule({"main": main})


def dot_pairs(tasks: int, vectors: int, count: int) -> IRModule:
    """The same with AVX512-BF16's pair product: X [2, 16] int32 (pairs of bfloat16), Y [tasks, 16] float32;
    4 * 16 * tasks * vectors * count operations."""
    lanes = 16

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((2, lanes), "int32"), Y: T.Buffer((tasks, lanes), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        with T.attr(0, "pragma_import_llvm", _DOT_PAIRS):
            for task in T.parallel(tasks):
                sums = T.alloc_local((vectors * lanes,), "float32")
                for i in T.unroll(vectors):
                    for v in T.vectorized(lanes):
                        sums[i * lanes + v] = T.Cast("float32", i)
                for _ in range(count):
                    for i in T.unroll(vectors):
                        sums[T.Ramp(i * lanes, 1, lanes)] = T.call_extern(
                            "float32x16",
                            "roof_dot_pairs",
                            sums[T.Ramp(i * lanes, 1, lanes)],
                            X.vload([0, 0], "int32x16"),
                            X.vload([1, 0], "int32x16"),
                        )
                for v in T.vectorized(lanes):
                    Y[task, v] = T.float32(0)
                for i in T.unroll(vectors):
                    for v in T.vectorized(lanes):
                        Y[task, v] = Y[task, v] + sums[i * lanes + v]

    return IRModule({"main": main})


def read(tasks: int, rows: int, lanes: int) -> Any:
    """X [tasks, rows, 8, lanes], Y [tasks, lanes]: sums all of X, each task its own part."""
    vectors = _READ_VECTORS

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((tasks, rows, vectors, lanes), "float32"), Y: T.Buffer((tasks, lanes), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for task in T.parallel(tasks):
            sums = T.alloc_local((vectors * lanes,), "float32")
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    sums[i * lanes + v] = T.float32(0)
            for r in range(rows):
                for i in T.unroll(vectors):
                    for v in T.vectorized(lanes):
                        sums[i * lanes + v] = sums[i * lanes + v] + X[task, r, i, v]
            for v in T.vectorized(lanes):
                Y[task, v] = T.float32(0)
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    Y[task, v] = Y[task, v] + sums[i * lanes + v]

    return IRModule({"main": main})


def read_bytes(tasks: int, rows: int, lanes: int) -> int:
    return 4 * tasks * rows * _READ_VECTORS * lanes


def rows_for(nbytes: int, tasks: int, lanes: int) -> int:
    """Rows for which `read` takes about `nbytes`."""
    return max(1, nbytes // read_bytes(tasks, 1, lanes))
