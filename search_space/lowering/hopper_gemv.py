"""GEMV kernels for up to four rows of A: 16-byte loads straight to registers, float32 sums, no tensor cores.

What decides is how many bytes of B are on their way at once; there is no ring, no barrier before the sums meet, and
nothing has to be a multiple of anything.
"""

from tvm.script import tirx as T

from search_space.hopper.gemv import Gemv
from search_space.lowering import hopper_ptx  # noqa: F401  sets how TVM treats CUDA source
from search_space.lowering.activation import activate

_UNPACK = {
    "bfloat16": "  x[0] = __uint_as_float(w << 16); x[1] = __uint_as_float(w & 0xffff0000u);\n",
    "float16": "  float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w)); x[0] = f.x; x[1] = f.y;\n",
}


def _unpack(dtype):
    """Source of `tw_unpack(word, float[2])`: the two 16-bit numbers of a word."""
    return f"__device__ __forceinline__ void tw_unpack(unsigned w, float* x) {{\n{_UNPACK[dtype]}}}\n"


def multiply_rows(c: Gemv):
    """(name, source): sums[i * rows + r] += a[u, i] . b[u, r] over the words of both. A single element lies in the low
    half of its word, the high half is zero."""
    name = "tw_multiply_rows"
    return name, _unpack(c.dtype) + (
        f"__device__ __forceinline__ void {name}(float* sums, const unsigned* a, const unsigned* b) {{\n"
        "#pragma unroll\n"
        f"  for (int u = 0; u < {c.unroll}; ++u)\n"
        "#pragma unroll\n"
        f"    for (int w = 0; w < {c.words}; ++w) {{\n"
        f"      float x[{c.m}][2], y[2];\n"
        "#pragma unroll\n"
        f"      for (int i = 0; i < {c.m}; ++i) tw_unpack(a[(u * {c.m} + i) * {c.words} + w], x[i]);\n"
        "#pragma unroll\n"
        f"      for (int r = 0; r < {c.rows}; ++r) {{\n"
        f"        tw_unpack(b[(u * {c.rows} + r) * {c.words} + w], y);\n"
        "#pragma unroll\n"
        f"        for (int i = 0; i < {c.m}; ++i)\n"
        f"          sums[i * {c.rows} + r] = fmaf(x[i][1], y[1], fmaf(x[i][0], y[0], sums[i * {c.rows} + r]));\n"
        "      }\n"
        "    }\n"
        "}\n"
    )


def multiply_columns(c: Gemv):
    """(name, source): sums[i * vector + v] += a[u, i] * b[u, v]; `a` holds one element a word."""
    name = "tw_multiply_columns"
    second = f"sums[i * {c.vector} + 2 * w + 1] = fmaf(x[0], y[1], sums[i * {c.vector} + 2 * w + 1]);"
    return name, _unpack(c.dtype) + (
        f"__device__ __forceinline__ void {name}(float* sums, const unsigned* a, const unsigned* b) {{\n"
        "#pragma unroll\n"
        f"  for (int u = 0; u < {c.unroll}; ++u)\n"
        "#pragma unroll\n"
        f"    for (int w = 0; w < {c.words}; ++w) {{\n"
        "      float x[2], y[2];\n"
        f"      tw_unpack(b[u * {c.words} + w], y);\n"
        "#pragma unroll\n"
        f"      for (int i = 0; i < {c.m}; ++i) {{\n"
        f"        tw_unpack(a[u * {c.m} + i], x);\n"
        f"        sums[i * {c.vector} + 2 * w] = fmaf(x[0], y[0], sums[i * {c.vector} + 2 * w]);\n"
        f"        {second if c.vector > 1 else ''}\n"
        "      }\n"
        "    }\n"
        "}\n"
    )


def add_lanes(count, first):
    """(name, source): every sum becomes the sum over the lanes that differ in the bits `first`, 2 * first, ... 16."""
    name = f"tw_add_lanes_{count}_{first}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* sums) {{\n"
        "#pragma unroll\n"
        f"  for (int bit = {first}; bit < 32; bit *= 2)\n"
        "#pragma unroll\n"
        f"    for (int i = 0; i < {count}; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], bit);\n"
        "}\n"
    )


def loader(vector, cached):
    """A function (words, first word, halves, pointer) that loads `vector` 16-bit elements. Plain Python: unrolled while
    the script is parsed. What is read once (`cached` False) does not displace A in L1."""
    kind = "ld.global" if cached else "ld.global.nc.L1::no_allocate"

    def load(words, at, half, pointer):
        if vector == 1:
            T.evaluate(T.ptx[f"{kind}.b16"](half[0], pointer))
        elif vector == 2:
            T.evaluate(T.ptx[f"{kind}.b32"](words[at], pointer))
        else:
            count = vector // 2
            T.evaluate(T.ptx[f"{kind}.v{count}.b32"](*[words[at + i] for i in range(count)], pointer))

    return load


def gemv_kernel(c: Gemv, entry: str = "main"):
    """PrimFunc `entry`(a, b, bias, c, n, k, batch, tiles, grid); see Gemv.launch for the scalars."""
    return _rows_kernel(c, entry) if c.trans_b else _columns_kernel(c, entry)


def _rows_kernel(c: Gemv, entry):
    """B is [batch * n, k]: lanes along k."""
    M, V, R, U, W, SP, NW, COLS = c.m, c.vector, c.rows, c.unroll, c.warps, c.split, c.words, c.columns
    STEP, dt, BATCH, EARLY = 32 * V * SP, c.dtype, c.batched, c.early_b
    BIAS, EPI, ROUNDS = c.epilogue != "none", c.epilogue, -(-M * COLS // c.threads)
    (multiply, multiply_src), (add, add_src) = multiply_rows(c), add_lanes(M * R, 1)
    load_once, load_again = loader(V, False), loader(V, True)

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, n: T.int32, k: T.int32,
               batch: T.int32, tiles: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        A = T.match_buffer(A_ptr, (batch * M, k), dtype=dt, align=2)
        B = T.match_buffer(B_ptr, (batch * n, k), dtype=dt, align=2)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (batch * M, n), dtype=dt, align=2)
        T.device_entry()
        bx = T.cta_id([grid])
        warp = T.warp_id([W])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        parts = pool.alloc((SP * M * COLS,), "float32", align=16)
        pool.commit()
        a = T.alloc_local((U * M * NW,), "uint32")
        b = T.alloc_local((U * R * NW,), "uint32")
        half = T.alloc_local((1,), "uint16")
        sums = T.alloc_local((M * R,), "float32")
        tb: T.int32 = bx // tiles if BATCH else 0
        tile: T.int32 = bx - tb * tiles if BATCH else bx
        part: T.int32 = warp % SP
        col0: T.int32 = tile * COLS + warp // SP * R
        t: T.int32 = (part * 32 + lane) * V

        @T.inline
        def load_b():
            for u in T.unroll(U):
                for r in T.unroll(R):
                    at = T.meta_var((u * R + r) * NW)
                    for i in T.unroll(NW):
                        b[at + i] = T.uint32(0)
                    if t + u * STEP < k:
                        # A row beyond the last one is the last one again; its sum is not stored.
                        load_once(b, at, half, B.ptr_to([tb * n + T.min(col0 + r, n - 1), t + u * STEP]))
                        if V == 1:
                            b[at] = T.Cast("uint32", half[0])

        T.ptx.griddepcontrol.launch_dependents()
        if not EARLY:
            T.ptx.griddepcontrol.wait()
        for i in T.unroll(M * R):
            sums[i] = T.float32(0)
        load_b()
        if EARLY:
            T.ptx.griddepcontrol.wait()
        while t < k:
            for u in T.unroll(U):
                for i in T.unroll(M):
                    at = T.meta_var((u * M + i) * NW)
                    for j in T.unroll(NW):
                        a[at + j] = T.uint32(0)
                    if t + u * STEP < k:
                        load_again(a, at, half, A.ptr_to([tb * M + i, t + u * STEP]))
                        if V == 1:
                            a[at] = T.Cast("uint32", half[0])
            T.cuda.func_call(multiply, sums.data, a.data, b.data, source_code=multiply_src, return_type="void")
            t = t + U * STEP
            load_b()
        T.cuda.func_call(add, sums.data, source_code=add_src, return_type="void")
        if lane == 0:
            for i in T.unroll(M):
                for r in T.unroll(R):
                    parts[(part * M + i) * COLS + warp // SP * R + r] = sums[i * R + r]
        T.cuda.cta_sync()
        x = T.alloc_local((1,), "float32")
        for q in T.unroll(ROUNDS):
            e = T.meta_var(q * (W * 32) + warp * 32 + lane)
            if (e < M * COLS) & (tile * COLS + e % COLS < n):
                x[0] = parts[e]
                for p in T.unroll(SP - 1):
                    x[0] = x[0] + parts[(p + 1) * (M * COLS) + e]
                if BIAS:
                    x[0] = activate(EPI, x[0] + T.Cast("float32", bias[tile * COLS + e % COLS]))
                C[tb * M + e // COLS, tile * COLS + e % COLS] = T.Cast(dt, x[0])
    # fmt: on
    return kernel


def _columns_kernel(c: Gemv, entry):
    """B is [batch * k, n]: lanes along n first, then along k."""
    M, V, L, U, W, NW, COLS = c.m, c.vector, c.lanes, c.unroll, c.warps, c.words, c.columns
    SLICES, dt, BATCH, EARLY = W * (32 // L), c.dtype, c.batched, c.early_b
    BIAS, EPI, ROUNDS = c.epilogue != "none", c.epilogue, -(-M * COLS // c.threads)
    (multiply, multiply_src), (add, add_src) = multiply_columns(c), add_lanes(M * V, L)
    load_once = loader(V, False)

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, n: T.int32, k: T.int32,
               batch: T.int32, tiles: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        A = T.match_buffer(A_ptr, (batch * M, k), dtype=dt, align=2)
        B = T.match_buffer(B_ptr, (batch * k, n), dtype=dt, align=2)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (batch * M, n), dtype=dt, align=2)
        T.device_entry()
        bx = T.cta_id([grid])
        warp = T.warp_id([W])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        parts = pool.alloc((W * M * COLS,), "float32", align=16)
        pool.commit()
        a = T.alloc_local((U * M,), "uint32")
        b = T.alloc_local((U * NW,), "uint32")
        half = T.alloc_local((1,), "uint16")
        sums = T.alloc_local((M * V,), "float32")
        tb: T.int32 = bx // tiles if BATCH else 0
        tile: T.int32 = bx - tb * tiles if BATCH else bx
        # Columns beyond the last ones are the last ones again; their sums are not stored.
        col: T.int32 = T.min(tile * COLS + lane % L * V, n - V)
        t: T.int32 = (warp * (32 // L) + lane // L) * U

        @T.inline
        def load_b():
            for u in T.unroll(U):
                for i in T.unroll(NW):
                    b[u * NW + i] = T.uint32(0)
                if t + u < k:
                    load_once(b, u * NW, half, B.ptr_to([tb * k + t + u, col]))
                    if V == 1:
                        b[u] = T.Cast("uint32", half[0])

        T.ptx.griddepcontrol.launch_dependents()
        if not EARLY:
            T.ptx.griddepcontrol.wait()
        for i in T.unroll(M * V):
            sums[i] = T.float32(0)
        load_b()
        if EARLY:
            T.ptx.griddepcontrol.wait()
        while t < k:
            for u in T.unroll(U):
                for i in T.unroll(M):
                    a[u * M + i] = T.uint32(0)
                    if t + u < k:
                        T.ptx.ld.global_.b16(half[0], A.ptr_to([tb * M + i, t + u]))
                        a[u * M + i] = T.Cast("uint32", half[0])
            T.cuda.func_call(multiply, sums.data, a.data, b.data, source_code=multiply_src, return_type="void")
            t = t + SLICES * U
            load_b()
        T.cuda.func_call(add, sums.data, source_code=add_src, return_type="void")
        if lane < L:
            for i in T.unroll(M):
                for v in T.unroll(V):
                    parts[(warp * M + i) * COLS + lane * V + v] = sums[i * V + v]
        T.cuda.cta_sync()
        x = T.alloc_local((1,), "float32")
        for q in T.unroll(ROUNDS):
            e = T.meta_var(q * (W * 32) + warp * 32 + lane)
            if (e < M * COLS) & (tile * COLS + e % COLS < n):
                x[0] = parts[e]
                for p in T.unroll(W - 1):
                    x[0] = x[0] + parts[(p + 1) * (M * COLS) + e]
                if BIAS:
                    x[0] = activate(EPI, x[0] + T.Cast("float32", bias[tile * COLS + e % COLS]))
                C[tb * M + e // COLS, tile * COLS + e % COLS] = T.Cast(dt, x[0])
    # fmt: on
    return kernel
