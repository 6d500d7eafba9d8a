"""The multistage GEMM kernel of sm_80 and later: cp.async, ldmatrix, mma.sync m16n8k16, float32 accumulation.

PTX ISA 9.0: 9.7.9.25.3 (cp.async), 9.7.14.5.15 (ldmatrix), 9.7.14.5.8 (fragments of m16n8k16). Tiles lie in shared
memory as in global memory, 16-byte units of a row permuted by an exclusive or with the row, so that the eight rows
of an ldmatrix fall into different banks. Every extent is a kernel parameter.
"""

from tvm.script import tirx as T

from search_space.lowering import hopper_ptx  # noqa: F401  sets how TVM treats CUDA source
from search_space.lowering.activation import activate
from search_space.sketches.cuda_gemm_mma.tile import UNIT, MmaTile, permuted

_PTX_TYPE = {"float16": "f16", "bfloat16": "bf16"}


def fragment_loads(c: MmaTile):
    """(load_a, load_b): functions (registers, buffer, element offset of the stage, row or column of the warp, k16, lane)
    that emit a warp's ldmatrix of one 16-wide step of k. Plain Python, unrolled while the script is parsed."""
    name = "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16"

    def emit(regs, at, buffer, base, cols, row, unit, lane, trans):
        where = base + row * cols + permuted(cols // UNIT, unit, lane % 8) * UNIT
        T.evaluate(
            T.ptx[name.format(".trans" if trans else "")](*[regs[at + i] for i in range(4)], buffer.ptr_to([where]))
        )

    def load_a(regs, at, buffer, base, first, k16, lane):
        cols = c.copied_a[1]
        for mi in range(c.warp_m // 16):
            if c.trans_a:
                row, unit = k16 * 16 + lane // 16 * 8 + lane % 8, first // 8 + mi * 2 + lane // 8 % 2
            else:
                row, unit = first + mi * 16 + lane % 16, k16 * 2 + lane // 16
            emit(regs, at + mi * 4, buffer, base, cols, row, unit, lane, c.trans_a)

    def load_b(regs, at, buffer, base, first, k16, lane):
        cols = c.copied_b[1]
        for ni in range(c.warp_n // 16):
            if c.trans_b:
                row, unit = first + ni * 16 + lane // 16 * 8 + lane % 8, k16 * 2 + lane // 8 % 2
            else:
                row, unit = k16 * 16 + lane % 16, first // 8 + ni * 2 + lane // 16
            emit(regs, at + ni * 4, buffer, base, cols, row, unit, lane, not c.trans_b)

    return load_a, load_b


def multiply(c: MmaTile):
    """A function (accumulators, fragments of a, of b, set) that emits a warp's mma of one 16-wide step of k."""
    p, mi_count, ni_count = _PTX_TYPE[c.dtype], c.warp_m // 16, c.warp_n // 8
    mma = f"mma.sync.aligned.m16n8k16.row.col.f32.{p}.{p}.f32"

    def step(acc, af, bf, which):
        for mi in range(mi_count):
            for ni in range(ni_count):
                sums = [acc[(mi * ni_count + ni) * 4 + i] for i in range(4)]
                left = [af[which * mi_count * 4 + mi * 4 + i] for i in range(4)]
                right = [bf[which * ni_count * 2 + ni * 2 + i] for i in range(2)]
                T.evaluate(T.ptx[mma](*sums, *left, *right, *sums))

    return step


def copies(c: MmaTile, rows: int, cols: int, vector: int):
    """(start, finish): functions that bring one tile [rows, cols] into shared memory.

    start(held, source, target, base, row0, col0, row_end, col_end, offset, thread) begins the copies (with vector 1:
    loads into the registers `held`), finish(held, target, base, thread) ends them (with vector 1: stores `held`).
    Elements at or past row_end or col_end become zero. `offset` is added to the row: the matrix of the batch.
    """
    units, count = cols // UNIT, rows * cols // UNIT
    passes = -(-count // c.threads)
    size = 2 * vector
    chain = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global"

    def places(thread):
        for i in range(passes):
            index = thread + i * c.threads
            row, unit = index // units, index % units
            inside = T.bool(True) if (i + 1) * c.threads <= count else index < count
            yield i, row, unit, row * cols + permuted(units, unit, row % 8) * UNIT, inside

    def start(held, source, target, base, row0, col0, row_end, col_end, offset, thread):
        for i, row, unit, where, inside in places(thread):
            right = row0 + row < row_end
            for j in range(UNIT // vector):
                col = col0 + unit * UNIT + j * vector
                valid = right & (col < col_end)
                pointer = source.ptr_to([offset + row0 + row, col])
                if vector == 1:
                    T.buffer_store(held, T.uint16(0), [i * UNIT + j])
                    T.evaluate(
                        T.ptx["ld.global.b16"](held[i * UNIT + j], pointer, pred=valid & inside, preserve_dst=True)
                    )
                else:
                    filled = T.if_then_else(valid, T.uint32(size), T.uint32(0))
                    to = target.ptr_to([base + where + j * vector])
                    extra = {} if (i + 1) * c.threads <= count else {"pred": inside}
                    T.evaluate(T.ptx[chain](to, pointer, size, filled, **extra))

    def finish(held, target, base, thread):
        for i, _row, _unit, where, inside in places(thread) if vector == 1 else ():
            words = []
            for j in range(0, UNIT, 2):
                low, high = (T.Cast("uint32", held[i * UNIT + j + e]) for e in range(2))
                words.append(low | (high << T.uint32(16)))
            T.evaluate(T.ptx["st.shared.v4.b32"](target.ptr_to([base + where]), *words, pred=inside))

    return start, finish


def mma_kernel(c: MmaTile, entry: str = "main"):
    """PrimFunc `entry`(a, b[, bias], c, m, n, k, batch, group, by_n, grid)."""
    BM, BN, BK, S, KK = c.block_m, c.block_n, c.block_k, c.stages, c.block_k // 16
    A_EL, B_EL = BM * BK, BN * BK
    WM, WN, NI, MI = c.warp_m, c.warp_n, c.warp_n // 8, c.warp_m // 16
    A_HELD, B_HELD = (
        UNIT * -(-r * q // (UNIT * c.threads)) if v == 1 else 1
        for (r, q), v in ((c.copied_a, c.vector_a), (c.copied_b, c.vector_b))
    )
    dt, pack = c.dtype, f"cvt.rn.{_PTX_TYPE[c.dtype]}x2.f32"
    BIAS, EPI, STAGED, EVEN = c.epilogue != "none", c.epilogue, c.store == "staged", c.even_n
    PLAIN = 1 in (c.vector_a, c.vector_b)
    load_a, load_b = fragment_loads(c)
    multiply_step = multiply(c)
    start_a, finish_a = copies(c, *c.copied_a, c.vector_a)
    start_b, finish_b = copies(c, *c.copied_b, c.vector_b)
    WU = WN // UNIT  # 16-byte units of a row of a warp's tile
    READS = WM * WU // 32

    def multiply_stage(acc, af, bf, As, Bs, a_base, b_base, row, col, lane):
        load_a(af, 0, As, a_base, row, 0, lane)
        load_b(bf, 0, Bs, b_base, col, 0, lane)
        for kk in range(KK):
            if kk + 1 < KK:  # the next fragments are on their way while these are multiplied
                load_a(af, (kk + 1) % 2 * MI * 4, As, a_base, row, kk + 1, lane)
                load_b(bf, (kk + 1) % 2 * NI * 2, Bs, b_base, col, kk + 1, lane)
            multiply_step(acc, af, bf, kk % 2)

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32,
               batch: T.int32, group: T.int32, by_n: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        A = T.match_buffer(A_ptr, (batch * k, m) if c.trans_a else (batch * m, k), dtype=dt, align=16)
        B = T.match_buffer(B_ptr, (batch * n, k) if c.trans_b else (batch * k, n), dtype=dt, align=16)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (batch * m, n), dtype=dt, align=2)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        bx = T.cta_id([grid])
        warp = T.warp_id([c.warps])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        As = pool.alloc((S * A_EL,), dt, align=128)
        Bs = pool.alloc((S * B_EL,), dt, align=128)
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
        wm: T.int32 = warp // c.warps_n * WM
        wn: T.int32 = warp % c.warps_n * WN
        kt_all: T.int32 = (k + BK - 1) // BK
        acc = T.alloc_local((MI * NI * 4,), "float32")
        af = T.alloc_local((2 * MI * 4,), "uint32")
        bf = T.alloc_local((2 * NI * 2,), "uint32")
        w = T.alloc_local((4,), "uint32")
        a_held = T.alloc_local((A_HELD,), "uint16")
        b_held = T.alloc_local((B_HELD,), "uint16")
        for i in T.unroll(MI * NI * 4):
            acc[i] = T.float32(0)

        @T.inline
        def start(slot, kt):
            if c.trans_a:
                start_a(a_held, A, As, slot * A_EL, kt * BK, tm, k, m, tb * k, thread)
            else:
                start_a(a_held, A, As, slot * A_EL, tm, kt * BK, m, k, tb * m, thread)
            if c.trans_b:
                start_b(b_held, B, Bs, slot * B_EL, tn, kt * BK, n, k, tb * n, thread)
            else:
                start_b(b_held, B, Bs, slot * B_EL, kt * BK, tn, k, n, tb * k, thread)

        @T.inline
        def finish(slot):
            finish_a(a_held, As, slot * A_EL, thread)
            finish_b(b_held, Bs, slot * B_EL, thread)

        for s in T.unroll(S - 1):
            if s < kt_all:
                start(s, s)
                finish(s)
            T.ptx.cp.async_.commit_group()
        slot: T.int32 = 0
        fill: T.int32 = S - 1
        for kt in T.serial(kt_all):
            T.ptx.cp.async_.wait_group(S - 2)
            T.cuda.cta_sync()
            if kt + S - 1 < kt_all:
                start(fill, kt + S - 1)
            T.ptx.cp.async_.commit_group()
            multiply_stage(acc, af, bf, As, Bs, slot * A_EL, slot * B_EL, wm, wn, lane)
            if PLAIN:
                if kt + S - 1 < kt_all:
                    finish(fill)
            slot = slot + 1
            if slot == S:
                slot = 0
            fill = fill + 1
            if fill == S:
                fill = 0

        if BIAS:
            for ni in T.unroll(NI):
                for e in T.unroll(2):
                    bcol: T.int32 = tn + wn + ni * 8 + lane % 4 * 2 + e
                    bval: T.float32 = T.float32(0)
                    if bcol < n:
                        bval = T.Cast("float32", bias[bcol])
                    for mi in T.unroll(MI):
                        for h in T.unroll(2):
                            ai = T.meta_var((mi * NI + ni) * 4 + h * 2 + e)
                            acc[ai] = activate(EPI, acc[ai] + bval)
        if STAGED:
            # The stages become one private area for each warp.
            T.cuda.cta_sync()
            area: T.int32 = warp * (WM * WN)
            for f in T.unroll(MI * NI * 2):
                srow = T.meta_var(f // (2 * NI) * 16 + lane // 4 + f % 2 * 8)
                T.ptx[pack](w[0], acc[f * 2 + 1], acc[f * 2])
                T.ptx.st.shared.b32(As.ptr_to([area + srow * WN + permuted(WU, f % (2 * NI) // 2, srow % 8) * UNIT + lane % 4 * 2]), w[0])
            T.cuda.warp_sync()
            for i in T.unroll(READS):
                rrow = T.meta_var((i * 32 + lane) // WU)
                unit = T.meta_var((i * 32 + lane) % WU)
                T.ptx.ld.shared.v4.b32(w[0], w[1], w[2], w[3], As.ptr_to([area + rrow * WN + permuted(WU, unit, rrow % 8) * UNIT]))
                if (tm + wm + rrow < m) & (tn + wn + unit * UNIT < n):
                    T.ptx.st.global_.v4.b32(C.ptr_to([tb * m + tm + wm + rrow, tn + wn + unit * UNIT]), w[0], w[1], w[2], w[3])
        else:
            half = T.alloc_local((2,), "uint16")
            for f in T.unroll(MI * NI * 2):
                drow = T.meta_var(tm + wm + f // (2 * NI) * 16 + lane // 4 + f % 2 * 8)
                dcol = T.meta_var(tn + wn + f % (2 * NI) // 2 * 8 + lane % 4 * 2)
                T.ptx[pack](w[0], acc[f * 2 + 1], acc[f * 2])
                if EVEN:
                    if (drow < m) & (dcol < n):
                        T.ptx.st.global_.b32(C.ptr_to([tb * m + drow, dcol]), w[0])
                else:
                    half[0] = T.Cast("uint16", w[0] & T.uint32(0xFFFF))
                    half[1] = T.Cast("uint16", w[0] >> T.uint32(16))
                    if (drow < m) & (dcol < n):
                        T.ptx.st.global_.b16(C.ptr_to([tb * m + drow, dcol]), half[0])
                    if (drow < m) & (dcol + 1 < n):
                        T.ptx.st.global_.b16(C.ptr_to([tb * m + drow, dcol + 1]), half[1])
    # fmt: on
    return kernel
