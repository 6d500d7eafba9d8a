"""The skinny float8 kernel: one stream of weights, read once, as wgmma's M operand; m is padded to 8, not to 64.

K is split inside a cluster; float32 partial sums go to their owner's shared memory by st.async and are added in rank
order. With block scales the products of each 128 of k go to registers of their own and are added, times both scales.
"""

from tvm.script import tirx as T

from search_space.gemm import SCALE_BLOCK
from search_space.hopper.kmajor import SLAB_BYTES
from search_space.hopper.skinny8 import Skinny8
from search_space.lowering import hopper_ptx as ptx
from search_space.lowering.activation import activate


def promote(rows_of_64, pad_m):
    """(name, source): sums += products * scale of their row of B (one a 64 rows) * scale of their row of A."""
    name, width = f"tw_promote_skinny_{rows_of_64}_{pad_m}", pad_m // 2
    return name, (
        f"__device__ __forceinline__ void {name}(float* sums, const float* products, const float* scale_b,"
        " const float* scale_a) {\n"
        "#pragma unroll\n"
        f"  for (int r = 0; r < {rows_of_64}; ++r)\n"
        "#pragma unroll\n"
        f"    for (int i = 0; i < {width}; ++i)\n"
        f"      sums[r * {width} + i] = fmaf(products[r * {width} + i], scale_b[r] * scale_a[i / 4 * 2 + (i & 1)],"
        f" sums[r * {width} + i]);\n"
        "}\n"
    )


def skinny8_kernel(c: Skinny8, entry: str = "main"):
    """PrimFunc `entry`(a, b[, a_scale, b_scale][, bias], c, m, n, k, clusters)."""
    MP, BR, SLABS, S, NC, MI = c.pad_m, c.rows, c.slabs, c.stages, c.consumers, c.rows_of_64
    SP, RB, VL, BK = c.split, c.red_buffers, c.vector, c.slabs * SLAB_BYTES
    NACC, A_B, B_B, TX = c.sums, c.a_bytes, c.b_bytes, c.a_bytes + c.b_bytes
    SLICE = BR // SP  # rows of the tile that one rank adds up and stores
    CBU = MP // 8 // (VL // 2)  # units of 8 rows x 4 * VL columns
    UNITS = SLICE // 8 * CBU
    UPW = -(-UNITS // (4 * NC))
    RED_BYTES = BR * MP * 4
    dt, TENSOR, BLOCK = c.dtype_out, c.scales == "tensor", c.scales == "block"
    mma = f"wgmma.mma_async.sync.aligned.m64n{MP}k32.f32.e4m3.e4m3"
    pack = f"cvt.rn.{ptx.WGMMA_TYPE[dt]}x2.f32"
    LOAD = ptx.tma_load(2, False)
    STA = f"st_async.shared::cluster.mbarrier::complete_tx::bytes.v{VL}.f32"
    MOVM = "movmatrix.sync.aligned.m8n8.trans.b16"
    fence, fence_src = ptx.fence_accumulators(NACC)
    add, add_src = promote(MI, MP)
    BIAS, EPI, EARLY = c.epilogue != "none", c.epilogue, c.early_b
    HI = ptx.descriptor_high(1, 64)
    fields = [64, 64, 128, 8, 8, 1, 1, 0, 3, 3, 0]  # for TVM's host stub, which never runs

    def mma_block(acc, da, db, slabs, begun):
        # Plain Python: unrolled while the script is parsed. `begun`: a predicate of the first products.
        for kk in range(4 * slabs):
            for mi in range(MI):
                ob = kk // 4 * (BR * 8) + kk % 4 * 2 + mi * 512
                oa = kk // 4 * (MP * 8) + kk % 4 * 2
                T.evaluate(T.ptx[mma](*[acc[mi * (MP // 2) + j] for j in range(MP // 2)],
                                      da + T.uint64(ob), db + T.uint64(oa), T.bool(True) if kk else begun,
                                      1, 1))  # fmt: skip

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, a_scale_ptr: T.handle, b_scale_ptr: T.handle, bias_ptr: T.handle,
               C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32, clusters: T.int32):
        T.func_attr({"global_symbol": entry})
        Ab = T.match_buffer(A_ptr, (m, k), dtype="uint8", align=16)
        Bb = T.match_buffer(B_ptr, (n, k), dtype="uint8", align=16)
        a_scale = T.match_buffer(a_scale_ptr, (m * k,), dtype="float32", align=4)
        b_scale = T.match_buffer(b_scale_ptr, (n * k,), dtype="float32", align=4)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (m, n), dtype=dt, align=4)
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, "uint8", 2, Ab.data, *fields)
        B_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", B_map, "uint8", 2, Bb.data, *fields)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        if SP > 1:
            rank = T.cta_id_in_cluster([SP])
        bx = T.cta_id([clusters * SP])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        Bs = pool.alloc((S * B_B,), "uint8", align=1024)
        As = pool.alloc((S * A_B,), "uint8", align=1024)
        if SP > 1:
            Rs = pool.alloc((RB * BR * MP,), "float32", align=128)
        full = pool.alloc((S,), "uint64", align=8)
        empty = pool.alloc((S,), "uint64", align=8)
        if SP > 1:
            red = pool.alloc((RB,), "uint64", align=8)
        pool.commit()

        rk: T.int32 = rank if SP > 1 else 0
        ct: T.int32 = bx // SP
        ctiles: T.int32 = (n + BR - 1) // BR
        kt_all: T.int32 = (k + BK - 1) // BK
        begin: T.int32 = rk * kt_all // SP
        cnt: T.int32 = (rk + 1) * kt_all // SP - begin
        pre: T.int32 = T.min(cnt, S)
        stage: T.int32 = 0
        phase: T.int32 = 0
        it: T.int32 = 0

        @T.inline
        def load_b(st, i):
            for ch in T.unroll(SLABS):
                T.ptx[LOAD](Bs.ptr_to([st * B_B + ch * (BR * SLAB_BYTES)]), T.address_of(B_map),
                            (begin + i) * BK + ch * SLAB_BYTES, ct * BR, full.ptr_to([st]))

        @T.inline
        def load_a(st, i):
            for ch in T.unroll(SLABS):
                T.ptx[LOAD](As.ptr_to([st * A_B + ch * (MP * SLAB_BYTES)]), T.address_of(A_map),
                            (begin + i) * BK + ch * SLAB_BYTES, 0, full.ptr_to([st]))

        if (wg == NC) & (warp == 0):
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(B_map))
                T.ptx.prefetch.tensormap(T.address_of(A_map))
            # One lane a barrier: short code matters while the instruction cache is cold.
            if lane < S:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([lane]), T.uint32(NC * 4))
            if SP > 1:
                if lane < RB:
                    T.ptx.mbarrier.init.shared.b64(red.ptr_to([lane]), T.uint32(1))
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(red.ptr_to([lane]), T.uint32(RED_BYTES))
            T.ptx.fence.mbarrier_init.release.cluster()
        if SP > 1:
            # The matching wait comes later, hidden behind the first loads.
            T.ptx.barrier.cluster.arrive.release.aligned()
        T.cuda.cta_sync()
        T.ptx.griddepcontrol.launch_dependents()

        if wg == NC:
            # ------------------------------------------------ producer
            if (warp == 0) & (lane == 0):
                if not EARLY:
                    T.ptx.griddepcontrol.wait()
                # Needs no peer (and, with early_b, no earlier kernel): fill the ring before any other wait.
                while it < pre:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([it]), T.uint32(TX))
                    load_b(it, it)
                    if not EARLY:
                        load_a(it, it)
                    it = it + 1
                if EARLY:
                    T.ptx.griddepcontrol.wait()
                    it = 0
                    while it < pre:
                        load_a(it, it)
                        it = it + 1
                stage = pre % S
                phase = pre // S
                while ct < ctiles:
                    while it < cnt:
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(TX))
                        load_b(stage, it)
                        load_a(stage, it)
                        it = it + 1
                        stage = stage + 1
                        if stage == S:
                            stage = 0
                            phase = phase ^ 1
                    it = 0
                    ct = ct + clusters
            if SP > 1:
                T.cuda.warp_sync()
                T.ptx.barrier.cluster.wait.acquire.aligned()
        else:
            # ------------------------------------------------ consumers
            acc = T.alloc_local((NACC,), "float32")
            da0: T.uint64
            db0: T.uint64
            da: T.uint64 = T.uint64(0)
            db: T.uint64 = T.uint64(0)
            prev: T.int32 = 0
            rbuf: T.int32 = 0
            rphase: T.int32 = 0
            n0: T.int32
            # In a cluster a shared address carries the block's rank above bit 24; the descriptor has room for 18 bits.
            T.ptx.mov.b64(da0, ((T.cuda.cvta_generic_to_shared(Bs.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.Cast("uint32", wg * (MI * 512)) + T.uint32(HI & 0xFFFFFFFF), T.uint32(HI >> 32))
            T.ptx.mov.b64(db0, ((T.cuda.cvta_generic_to_shared(As.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.uint32(HI & 0xFFFFFFFF), T.uint32(HI >> 32))
            if SP > 1:
                T.ptx.barrier.cluster.wait.acquire.aligned()
            # The scale of A may be what the previous kernel writes.
            T.ptx.griddepcontrol.wait()
            scale = T.alloc_local((1,), "float32")
            if TENSOR:
                scale[0] = a_scale[0] * b_scale[0]
            if BLOCK:
                part = T.alloc_local((NACC,), "float32")
                part2 = T.alloc_local((NACC,), "float32")
                scale_a = T.alloc_local((MP // 4,), "float32")
                scale_b = T.alloc_local((MI,), "float32")
                next_a = T.alloc_local((MP // 4,), "float32")
                next_b = T.alloc_local((MI,), "float32")

            @T.inline
            def release(st):
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([st]), T.uint32(1))

            @T.inline
            def read_scales(slab):
                blocks: T.int32 = (k + SCALE_BLOCK - 1) // SCALE_BLOCK
                kb: T.int32 = T.min(slab, blocks - 1)
                for i in T.unroll(MP // 4):
                    next_a[i] = a_scale[kb * m + T.min(i // 2 * 8 + lane % 4 * 2 + i % 2, m - 1)]
                for mi in T.unroll(MI):
                    next_b[mi] = b_scale[T.min(n0 + wg * (64 * MI) + mi * 64, n - 1) // SCALE_BLOCK * blocks + kb]

            @T.inline
            def advance():
                stage = stage + 1
                if stage == S:
                    stage = 0
                    phase = phase ^ 1

            @T.inline
            def begin_slab(products, slab):
                point_to(slab)
                T.ptx.wgmma.fence.sync.aligned()
                mma_block(products, da, db, 1, T.bool(False))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def take_scales(slab):
                for j in T.unroll(MP // 4):
                    scale_a[j] = next_a[j]
                for mi in T.unroll(MI):
                    scale_b[mi] = next_b[mi]
                read_scales(slab + 1)

            @T.inline
            def add_slab(products):
                T.cuda.func_call(fence, products.data, source_code=fence_src, return_type="void")
                T.cuda.func_call(add, acc.data, products.data, scale_b.data, scale_a.data, source_code=add_src,
                                 return_type="void")

            @T.inline
            def add_stage(i):
                # Slabs take turns in two sets of registers: each is added up under the products of the next.
                begin_slab(part, 0)
                for pair in T.unroll(SLABS // 2):
                    take_scales((begin + i) * SLABS + 2 * pair)
                    begin_slab(part2, 2 * pair + 1)
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    add_slab(part)
                    take_scales((begin + i) * SLABS + 2 * pair + 1)
                    if pair < SLABS // 2 - 1:
                        begin_slab(part, 2 * pair + 2)
                        T.ptx.wgmma.wait_group.sync.aligned(1)
                    else:
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        release(stage)
                    add_slab(part2)

            w = T.alloc_local((2,), "uint32")
            bval = T.alloc_local((1,), "float32")

            @T.inline
            def store8x8(row, col, x, y):
                # 8 columns of C x 8 of its rows, transposed in registers to the row-major C.
                f = T.meta_var(scale[0] if TENSOR else T.float32(1))
                if BIAS:
                    bval[0] = T.float32(0)
                    if row + lane // 4 < n:
                        bval[0] = T.Cast("float32", bias[row + lane // 4])
                    T.ptx[pack](w[0], activate(EPI, y * f + bval[0]), activate(EPI, x * f + bval[0]))
                else:
                    T.ptx[pack](w[0], y * f, x * f)
                T.ptx[MOVM](w[1], w[0])
                if (col + lane // 4 < m) & (row + lane % 4 * 2 < n):
                    T.ptx.st.global_.b32(C.ptr_to([col + lane // 4, row + lane % 4 * 2]), w[1])

            @T.inline
            def point_to(slab):
                da = da0 + T.Cast("uint64", stage * (B_B // 16) + slab * (BR * 8))
                db = db0 + T.Cast("uint64", stage * (A_B // 16) + slab * (MP * 8))

            while ct < ctiles:
                n0 = ct * BR
                if BLOCK:
                    for i in T.unroll(NACC):
                        acc[i] = T.float32(0)
                    read_scales(begin * SLABS)
                    for i in T.serial(cnt):
                        T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                        add_stage(i)
                        advance()
                else:
                    for i in T.serial(cnt):
                        T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                        point_to(0)
                        T.ptx.wgmma.fence.sync.aligned()
                        mma_block(acc, da, db, SLABS, T.ptx.pred(i > 0))
                        T.ptx.wgmma.commit_group.sync.aligned()
                        T.ptx.wgmma.wait_group.sync.aligned(1)
                        if i > 0:
                            release(prev)
                        prev = stage
                        advance()
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    release(prev)
                    T.cuda.func_call(fence, acc.data, source_code=fence_src, return_type="void")

                if SP == 1:
                    for mi in T.unroll(MI):
                        for cb in T.unroll(MP // 8):
                            for h in T.unroll(2):
                                a0 = T.meta_var(mi * (MP // 2) + cb * 4 + h * 2)
                                store8x8(n0 + wg * (64 * MI) + mi * 64 + warp * 16 + h * 8, cb * 8, acc[a0], acc[a0 + 1])
                else:
                    if RB > 1:
                        # The peers may refill the other buffer once all our warps have read it.
                        T.ptx.bar.sync(T.uint32(1), T.uint32(128 * NC))
                    rdst = T.alloc_local([2], "uint32")
                    for mi in T.unroll(MI):
                        for h in T.unroll(2):
                            xrow = T.meta_var(wg * (64 * MI) + mi * 64 + warp * 16 + h * 8)
                            peer = T.meta_var(T.Cast("uint32", xrow // SLICE))
                            unit0 = T.meta_var(xrow % SLICE // 8 * CBU)
                            T.ptx.mapa.shared__cluster.u32(
                                rdst[0], T.cuda.cvta_generic_to_shared(
                                    Rs.ptr_to([rbuf * (BR * MP) + ((rk * UNITS + unit0) * 32 + lane) * VL])), peer)
                            T.ptx.mapa.shared__cluster.u32(rdst[1], T.cuda.cvta_generic_to_shared(red.ptr_to([rbuf])), peer)
                            for u in T.unroll(CBU):
                                a0 = T.meta_var(mi * (MP // 2) + h * 2 + u * (2 * VL))
                                if VL == 4:
                                    T.ptx[STA](rdst[0] + T.uint32(u * 512), acc[a0], acc[a0 + 1], acc[a0 + 4], acc[a0 + 5], rdst[1])
                                else:
                                    T.ptx[STA](rdst[0] + T.uint32(u * 256), acc[a0], acc[a0 + 1], rdst[1])
                    T.cuda.mbarrier_wait(red.ptr_to([rbuf]), rphase)
                    if RB > 1:
                        if (wg == 0) & (warp == 0) & (lane == 0):
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(red.ptr_to([rbuf]), T.uint32(RED_BYTES))
                    s = T.alloc_local((VL,), "float32")
                    for q in T.unroll(UPW):
                        unit: T.int32 = q * (4 * NC) + wg * 4 + warp
                        if unit < UNITS:
                            for v in T.unroll(VL):
                                s[v] = Rs[rbuf * (BR * MP) + (unit * 32 + lane) * VL + v]
                            for r in T.unroll(SP - 1):
                                for v in T.unroll(VL):
                                    s[v] = s[v] + Rs[rbuf * (BR * MP) + (((r + 1) * UNITS + unit) * 32 + lane) * VL + v]
                            for j in T.unroll(VL // 2):
                                store8x8(n0 + rk * SLICE + unit // CBU * 8, unit % CBU * (4 * VL) + j * 8, s[2 * j], s[2 * j + 1])
                    if RB == 2:
                        rbuf = rbuf ^ 1
                        if rbuf == 0:
                            rphase = rphase ^ 1
                ct = ct + clusters
    # fmt: on
    return kernel
