"""The kernels before and after the attention backward's main one: row sums and zeroed dQ; dQ in its own type."""

import math

from tvm.script import tirx as T

from search_space.hopper.backward_tiles import FINISH_THREADS, PREPARE_THREADS, BackwardTile
from search_space.lowering import hopper_ptx as ptx

_LOG2E = math.log2(math.e)


def _dot8(dtype: str):
    """(name, source): the float32 dot product of 8 elements each."""
    name = f"tw_dot8_{dtype}"
    if dtype == "bfloat16":
        low, high = "__uint_as_float(w << 16)", "__uint_as_float(w & 0xffff0000u)"
    else:
        half = 'float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)({0}))); return f;'
        low, high = "tw_half(w)", "tw_half(w >> 16)"
    convert = (
        ""
        if dtype == "bfloat16"
        else f"__device__ __forceinline__ float tw_half(unsigned w) {{ {half.format('w')} }}\n"
    )
    return name, (
        f"{convert}__device__ __forceinline__ float {name}_low(unsigned w) {{ return {low}; }}\n"
        f"__device__ __forceinline__ float {name}_high(unsigned w) {{ return {high}; }}\n"
        f"__device__ __forceinline__ float {name}(const void* a, const void* b) {{\n"
        "  const uint4 x = *reinterpret_cast<const uint4*>(a), y = *reinterpret_cast<const uint4*>(b);\n"
        "  const unsigned u[4] = {x.x, x.y, x.z, x.w}, v[4] = {y.x, y.y, y.z, y.w};\n"
        "  float sum = 0.f;\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 4; ++i)\n"
        f"    sum += {name}_low(u[i]) * {name}_low(v[i]) + {name}_high(u[i]) * {name}_high(v[i]);\n"
        "  return sum;\n"
        "}\n"
    )


def prepare_kernel(c: BackwardTile, entry: str = "prepare"):
    """PrimFunc `entry`: delta[row] = dO . O and lse2[row] = LSE log2(e) of every row, padded to whole query tiles with 0
    and +inf; +inf too for a row that saw no key, so that its probabilities are 0. Zeroes dQ's sums (and turns)."""
    D, BQ = c.head_dim, c.block_q
    LANES = D // 8
    ROWS = PREPARE_THREADS // LANES
    DET = c.deterministic
    dot = _dot8(c.dtype)

    def call(helper, *args, returns="void"):
        return T.cuda.func_call(helper[0], *args, source_code=helper[1], return_type=returns)

    # fmt: off
    @T.prim_func
    def prepare(o_ptr: T.handle, g_ptr: T.handle, lse_ptr: T.handle, delta_ptr: T.handle, lse2_ptr: T.handle,
                sums_ptr: T.handle, turns_ptr: T.handle, batch: T.int32, heads_q: T.int32, seq_q: T.int32,
                q_tiles: T.int32, padded: T.int32, q_head: T.int32, q_row: T.int32, q_batch: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        o = T.match_buffer(o_ptr, (batch, q_batch), dtype=c.dtype, align=16)
        g = T.match_buffer(g_ptr, (batch, q_batch), dtype=c.dtype, align=16)
        lse = T.match_buffer(lse_ptr, (batch, heads_q, seq_q), dtype="float32", align=4)
        delta = T.match_buffer(delta_ptr, (batch * heads_q * q_tiles * BQ,), dtype="float32", align=16)
        lse2 = T.match_buffer(lse2_ptr, (batch * heads_q * q_tiles * BQ,), dtype="float32", align=16)
        sums = T.match_buffer(sums_ptr, (batch * heads_q * q_tiles * BQ * D,), dtype="float32", align=16)
        turns = T.match_buffer(turns_ptr, (batch * heads_q * q_tiles,), dtype="int32", align=4)
        T.device_entry()
        bx = T.cta_id([grid])
        tx = T.thread_id([PREPARE_THREADS])
        row: T.int32
        inside: T.int32
        bh: T.int32
        tb: T.int32
        th: T.int32
        dots: T.float32
        level: T.float32
        row = bx * ROWS + tx // LANES
        bh = T.truncdiv(row, padded)
        inside = row - bh * padded
        tb = T.truncdiv(bh, heads_q)
        th = bh - tb * heads_q
        dots = T.float32(0)
        level = T.float32("inf")
        if inside < seq_q:
            at = T.meta_var(th * q_head + inside * q_row + tx % LANES * 8)
            dots = call(dot, o.ptr_to([tb, at]), g.ptr_to([tb, at]), returns="float32")
            if lse[tb, th, inside] > T.float32("-inf"):
                level = lse[tb, th, inside] * T.float32(_LOG2E)
        dots = T.cuda.warp_sum(dots, LANES)
        if tx % LANES == 0:
            delta[row] = dots
            lse2[row] = level
            if DET:
                if inside % BQ == 0:
                    turns[T.truncdiv(row, BQ)] = 0
        for i in T.unroll(2):
            T.ptx["st.global.v4.f32"](sums.ptr_to([row * D + tx % LANES * 8 + i * 4]), T.float32(0), T.float32(0),
                                      T.float32(0), T.float32(0))
    # fmt: on
    return prepare


def finish_kernel(c: BackwardTile, entry: str = "finish"):
    """PrimFunc `entry`: dQ = scale * sums, which lie in the order of wgmma's accumulators: by query tile and warpgroup of
    the main kernel, four registers of 128 threads at a time."""
    D, BQ, NC = c.head_dim, c.block_q, c.consumers
    WIDTH, SHARES = c.dq_columns, c.consumers // c.dq_rows
    PACK = f"cvt.rn.{ptx.WGMMA_TYPE[c.dtype]}x2.f32"

    # fmt: off
    @T.prim_func
    def finish(sums_ptr: T.handle, dq_ptr: T.handle, batch: T.int32, heads_q: T.int32, seq_q: T.int32,
               q_tiles: T.int32, q_head: T.int32, q_row: T.int32, q_batch: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        sums = T.match_buffer(sums_ptr, (batch * heads_q * q_tiles * BQ * D,), dtype="float32", align=16)
        dq = T.match_buffer(dq_ptr, (batch, q_batch), dtype=c.dtype, align=16)
        T.device_entry()
        bx = T.cta_id([grid])
        tx = T.thread_id([FINISH_THREADS])
        lane = T.meta_var(tx % 32)
        x = T.alloc_local((8,), "float32")
        w = T.alloc_local((4,), "uint32")
        tile: T.int32
        part: T.int32
        bh: T.int32
        tb: T.int32
        th: T.int32
        row: T.int32
        tile = T.truncdiv(bx, NC)
        part = bx - tile * NC
        bh = T.truncdiv(tile, q_tiles)
        tb = T.truncdiv(bh, heads_q)
        th = bh - tb * heads_q
        row = (tile - bh * q_tiles) * BQ + part // SHARES * 64 + tx // 32 * 16 + lane // 4
        odd = T.meta_var(lane % 2)
        for f in T.unroll(WIDTH // 16):
            for i in T.unroll(2):
                T.ptx["ld.global.v4.f32"](x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3],
                                          sums.ptr_to([bx * (64 * WIDTH) + (2 * f + i) * 512 + tx * 4]))
            for r in T.unroll(2):
                # Lanes 2i and 2i + 1 swap halves of two neighbouring 8-column blocks: 8 bytes a lane, and four lanes
                # fill a 32-byte sector of each row.
                T.ptx[PACK](w[0], x[2 * r + 1] * T.float32(c.scale), x[2 * r] * T.float32(c.scale))
                T.ptx[PACK](w[1], x[2 * r + 5] * T.float32(c.scale), x[2 * r + 4] * T.float32(c.scale))
                T.ptx["shfl_sync.bfly.b32"](w[2], T.Select(odd == 1, w[0], w[1]), T.uint32(1), T.uint32(31),
                                            T.uint32(0xFFFFFFFF))
                w[3] = T.Select(odd == 1, w[1], w[2])
                w[2] = T.Select(odd == 1, w[2], w[0])
                if row + r * 8 < seq_q:
                    at = T.meta_var(th * q_head + (row + r * 8) * q_row + part % SHARES * WIDTH + f * 16 + odd * 8
                                    + lane % 4 // 2 * 4)
                    T.ptx["st.global.v2.b32"](dq.ptr_to([tb, at]), w[2], w[3])
    # fmt: on
    return finish
