"""The float32 GEMM kernel on ordinary cores: cp.async stages, register tiles of 4 x 4 pieces, one FFMA a product.

Needs sm_80 (cp.async). Every product and sum is float32; k is summed in ascending order by each thread, so the result
does not depend on the launch. Every extent is a kernel parameter.
"""

from tvm.script import tirx as T

from search_space.lowering import hopper_ptx  # noqa: F401  sets how TVM treats CUDA source
from search_space.lowering.activation import activate
from search_space.sketches.cuda_gemm_simt.tile import LANES_M, LANES_N, QUAD, SimtTile


def transposing_copy(c: SimtTile, extent: int, pitch: int):
    """A function that copies [extent rows, block_k] with k contiguous, 4 bytes at a time, to shared memory [k, extent]."""
    count, passes = extent * c.block_k, -(-extent * c.block_k // c.threads)

    def start(source, target, base, first, k0, end, k_end, offset, thread):
        for i in range(passes):
            index = thread + i * c.threads
            row, kk = index // c.block_k, index % c.block_k
            valid = (first + row < end) & (k0 + kk < k_end)
            filled = T.if_then_else(valid, T.uint32(4), T.uint32(0))
            extra = {} if (i + 1) * c.threads <= count else {"pred": index < count}
            T.evaluate(T.ptx["cp.async.ca.shared.global"](
                target.ptr_to([base + kk * pitch + row]), source.ptr_to([offset + first + row, k0 + kk]), 4, filled, **extra))  # fmt: skip

    return start


def straight_copy(c: SimtTile, extent: int, pitch: int, quads: bool):
    """A function that copies [block_k, extent] with the extent contiguous, 16 or 4 bytes at a time."""
    wide = QUAD if quads else 1
    units = extent // wide
    count, passes = units * c.block_k, -(-units * c.block_k // c.threads)
    chain = f"cp.async.{'cg' if quads else 'ca'}.shared.global"

    def start(source, target, base, first, k0, end, k_end, offset, thread):
        for i in range(passes):
            index = thread + i * c.threads
            kk, col = index // units, index % units * wide
            valid = (first + col < end) & (k0 + kk < k_end)
            filled = T.if_then_else(valid, T.uint32(4 * wide), T.uint32(0))
            extra = {} if (i + 1) * c.threads <= count else {"pred": index < count}
            T.evaluate(T.ptx[chain](
                target.ptr_to([base + kk * pitch + col]), source.ptr_to([offset + k0 + kk, first + col]), 4 * wide, filled, **extra))  # fmt: skip

    return start


def multiply_stage(c: SimtTile):
    """A function that emits one stage's products; with two sets of fragments those of k + 1 are read while those of k
    are multiplied."""
    ahead, sets = c.fragment_sets - 1, c.fragment_sets
    pieces_m, pieces_n = c.thread_m // QUAD, c.thread_n // QUAD

    def read(regs, which, width, buffer, start, step):
        for p in range(width // QUAD):
            at = which * width + p * QUAD
            T.evaluate(
                T.ptx["ld.shared.v4.f32"](*[regs[at + i] for i in range(QUAD)], buffer.ptr_to([start + p * step]))
            )

    def stage(acc, af, bf, As, Bs, a_start, b_start):
        a_step, b_step = LANES_M * QUAD, LANES_N * QUAD
        for kk in range(-ahead, c.block_k):
            if kk + ahead < c.block_k:
                read(af, (kk + ahead) % sets, c.thread_m, As, a_start + (kk + ahead) * c.pitch_a, a_step)
                read(bf, (kk + ahead) % sets, c.thread_n, Bs, b_start + (kk + ahead) * c.pitch_b, b_step)
            if kk < 0:
                continue
            for i in range(pieces_m * QUAD):
                for j in range(pieces_n * QUAD):
                    at, left, right = i * c.thread_n + j, af[kk % sets * c.thread_m + i], bf[kk % sets * c.thread_n + j]
                    T.buffer_store(acc, acc[at] + left * right, [at])

    return stage


def simt_kernel(c: SimtTile, entry: str = "main"):
    """PrimFunc `entry`(a, b[, bias], c, m, n, k, batch, group, by_n, grid)."""
    BM, BN, BK, S, TM, TN = c.block_m, c.block_n, c.block_k, c.stages, c.thread_m, c.thread_n
    A_EL, B_EL = BK * c.pitch_a, BK * c.pitch_b
    BIAS, EPI, QUADS = c.epilogue != "none", c.epilogue, c.quads_c
    start_a = straight_copy(c, BM, c.pitch_a, c.quads_a) if c.trans_a else transposing_copy(c, BM, c.pitch_a)
    start_b = transposing_copy(c, BN, c.pitch_b) if c.trans_b else straight_copy(c, BN, c.pitch_b, c.quads_b)
    multiply = multiply_stage(c)

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32,
               batch: T.int32, group: T.int32, by_n: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        A = T.match_buffer(A_ptr, (batch * k, m) if c.trans_a else (batch * m, k), dtype="float32", align=16)
        B = T.match_buffer(B_ptr, (batch * n, k) if c.trans_b else (batch * k, n), dtype="float32", align=16)
        bias = T.match_buffer(bias_ptr, (n,), dtype="float32", align=4)
        C = T.match_buffer(C_ptr, (batch * m, n), dtype="float32", align=4)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        bx = T.cta_id([grid])
        warp = T.warp_id([c.threads // 32])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        As = pool.alloc((S * A_EL,), "float32", align=128)
        Bs = pool.alloc((S * B_EL,), "float32", align=16)
        pool.commit()

        # Raster: `group` rows (columns with by_n) of tiles at a time, so that neighbours' operands stay in L2.
        mt: T.int32 = (m + BM - 1) // BM
        nt: T.int32 = (n + BN - 1) // BN
        tb: T.int32 = T.truncdiv(bx, mt * nt)
        r: T.int32 = bx - tb * (mt * nt)
        p_ext: T.int32 = T.if_then_else(by_n == 1, nt, mt)
        q_ext: T.int32 = T.if_then_else(by_n == 1, mt, nt)
        first: T.int32 = T.truncdiv(r, group * q_ext) * group
        r = r - first * q_ext
        cur: T.int32 = T.min(p_ext - first, group)
        v: T.int32 = T.truncdiv(r, cur)
        u: T.int32 = first + r - v * cur
        tm: T.int32 = T.if_then_else(by_n == 1, v, u) * BM
        tn: T.int32 = T.if_then_else(by_n == 1, u, v) * BN

        thread: T.int32 = warp * 32 + lane
        wm: T.int32 = warp // c.warps_n * (LANES_M * TM) + lane // LANES_N * QUAD
        wn: T.int32 = warp % c.warps_n * (LANES_N * TN) + lane % LANES_N * QUAD
        kt_all: T.int32 = (k + BK - 1) // BK
        acc = T.alloc_local((TM * TN,), "float32")
        af = T.alloc_local((c.fragment_sets * TM,), "float32")
        bf = T.alloc_local((c.fragment_sets * TN,), "float32")
        for i in T.unroll(TM * TN):
            acc[i] = T.float32(0)

        @T.inline
        def start(slot, kt):
            start_a(A, As, slot * A_EL, tm, kt * BK, m, k, tb * k if c.trans_a else tb * m, thread)
            start_b(B, Bs, slot * B_EL, tn, kt * BK, n, k, tb * n if c.trans_b else tb * k, thread)

        for s in T.unroll(S - 1):
            if s < kt_all:
                start(s, s)
            T.ptx.cp.async_.commit_group()
        slot: T.int32 = 0
        fill: T.int32 = S - 1
        for kt in T.serial(kt_all):
            T.ptx.cp.async_.wait_group(S - 2)
            T.cuda.cta_sync()
            if kt + S - 1 < kt_all:
                start(fill, kt + S - 1)
            T.ptx.cp.async_.commit_group()
            multiply(acc, af, bf, As, Bs, slot * A_EL + wm, slot * B_EL + wn)
            slot = slot + 1
            if slot == S:
                slot = 0
            fill = fill + 1
            if fill == S:
                fill = 0

        for q in T.unroll(TN // QUAD):
            col = T.meta_var(tn + wn + q * (LANES_N * QUAD))
            if BIAS:
                for j in T.unroll(QUAD):
                    bval: T.float32 = T.float32(0)
                    if col + j < n:
                        bval = bias[col + j]
                    for i in T.unroll(TM):
                        acc[i * TN + q * QUAD + j] = activate(EPI, acc[i * TN + q * QUAD + j] + bval)
            for i in T.unroll(TM):
                row = T.meta_var(tm + wm + i // QUAD * (LANES_M * QUAD) + i % QUAD)
                at = T.meta_var(i * TN + q * QUAD)
                if QUADS:
                    if (row < m) & (col < n):
                        T.ptx.st.global_.v4.f32(C.ptr_to([tb * m + row, col]), acc[at], acc[at + 1], acc[at + 2], acc[at + 3])
                else:
                    for j in T.unroll(QUAD):
                        if (row < m) & (col + j < n):
                            C[tb * m + row, col + j] = acc[at + j]
    # fmt: on
    return kernel
