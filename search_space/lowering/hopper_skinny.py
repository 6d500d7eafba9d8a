"""The skinny GEMM kernel: one stream of weights, read once, as wgmma's M operand; m is padded to 8, not to 64.

K is split inside a cluster; float32 partial sums go to their owner's shared memory by st.async and are added in rank
order, so nothing depends on timing and there is neither a workspace nor a second kernel.
"""

from tvm.script import tirx as T

from search_space.hopper.skinny import Skinny
from search_space.lowering import hopper_ptx as ptx
from search_space.lowering.activation import activate


def skinny_kernel(c: Skinny, entry: str = "main"):
    """PrimFunc `entry`(a, b, bias, c, m, n, k, clusters)."""
    MP, BR, BK, S, NC, MI = c.pad_m, c.rows, c.block_k, c.stages, c.consumers, c.rows_of_64
    SP, NB, CS, RB, VL = c.split, c.share, c.cluster, c.red_buffers, c.vector
    KCH, NACC = BK // 64, c.accumulators
    A_EL, B_EL, A_ROWS = MP * BK, BR * BK, MP // NB
    TX = 2 * (A_EL + B_EL)
    SLICE = BR // SP  # rows of the tile that one rank adds up and stores
    CBU = MP // 8 // (VL // 2)  # units of 8 rows x 4 * VL columns
    UNITS = SLICE // 8 * CBU
    UPW = -(-UNITS // (4 * NC))
    RED_BYTES = BR * MP * 4
    dt = c.dtype
    p = ptx.WGMMA_TYPE[dt]
    mma = f"wgmma.mma_async.sync.aligned.m64n{MP}k16.f32.{p}.{p}"
    pack = f"cvt.rn.{p}x2.f32"
    LOAD, LOADM = ptx.tma_load(2, False), ptx.tma_load(2, True)
    STA = f"st_async.shared::cluster.mbarrier::complete_tx::bytes.v{VL}.f32"
    MOVM = "movmatrix.sync.aligned.m8n8.trans.b16"
    fence, fence_src = ptx.fence_accumulators(NACC)
    AMASK = sum(1 << (SP * j) for j in range(NB))
    EARLY_A = NB == 1 and not c.early_b  # A too waits for nothing
    BIAS, EPI = c.epilogue != "none", c.epilogue
    if c.trans_b:
        HI_B, B_SLABS, B_SLAB, M64 = ptx.descriptor_high(1, 64), KCH, BR * 64, 512
    else:
        HI_B, B_SLABS, B_SLAB, M64 = ptx.descriptor_high(BK * 8, 64), BR // 64, BK * 64, BK * 8
    HI_A = ptx.descriptor_high(1, 64)
    fields = [64, 64, 128, 8, 8, 1, 1, 0, 3, 3, 0]  # for TVM's host stub, which never runs

    def mma_block(acc, da, db, begun):
        # Plain Python: unrolled while the script is parsed.
        for kk in range(BK // 16):
            for mi in range(MI):
                ob = kk // 4 * (BR * 8) + kk % 4 * 2 if c.trans_b else kk * 128
                oa = kk // 4 * (MP * 8) + kk % 4 * 2
                T.evaluate(T.ptx[mma](*[acc[mi * (MP // 2) + j] for j in range(MP // 2)],
                                      da + T.uint64(ob + mi * M64), db + T.uint64(oa),
                                      T.ptx.pred(begun) if kk == 0 else T.bool(True),
                                      1, 1, int(not c.trans_b), 0))  # fmt: skip

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, m: T.int32, n: T.int32,
               k: T.int32, clusters: T.int32):
        T.func_attr({"global_symbol": entry})
        Ab = T.match_buffer(A_ptr, (m, k), dtype=dt, align=16)
        Bb = T.match_buffer(B_ptr, (n, k), dtype=dt, align=16)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (m, n), dtype=dt, align=4)
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, dt, 2, Ab.data, *fields)
        B_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", B_map, dt, 2, Bb.data, *fields)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        if CS > 1:
            rank = T.cta_id_in_cluster([CS])
        bx = T.cta_id([clusters * CS])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        Bs = pool.alloc((S * B_EL,), dt, align=1024)
        As = pool.alloc((S * A_EL,), dt, align=1024)
        if SP > 1:
            Rs = pool.alloc((RB * BR * MP,), "float32", align=128)
        full = pool.alloc((S,), "uint64", align=8)
        empty = pool.alloc((S,), "uint64", align=8)
        if SP > 1:
            red = pool.alloc((RB,), "uint64", align=8)
        pool.commit()

        rk: T.int32
        rn: T.int32
        ct: T.int32
        ctiles: T.int32
        stage: T.int32
        phase: T.int32
        begin: T.int32
        cnt: T.int32
        it: T.int32
        kt_all: T.int32
        pre: T.int32
        if CS > 1:
            rk = rank % SP
            rn = rank // SP
        else:
            rk = 0
            rn = 0
        ct = bx // CS
        ctiles = (n + BR * NB - 1) // (BR * NB)
        kt_all = (k + BK - 1) // BK
        begin = rk * kt_all // SP
        cnt = (rk + 1) * kt_all // SP - begin
        pre = T.min(cnt, S)
        stage = 0
        phase = 0
        it = 0

        @T.inline
        def load_b(st, i):
            for ch in T.unroll(B_SLABS):
                kc = T.meta_var((begin + i) * BK)
                row = T.meta_var((ct * NB + rn) * BR)
                if c.trans_b:
                    T.ptx[LOAD](Bs.ptr_to([st * B_EL + ch * B_SLAB]), T.address_of(B_map), kc + ch * 64, row, full.ptr_to([st]))
                else:
                    T.ptx[LOAD](Bs.ptr_to([st * B_EL + ch * B_SLAB]), T.address_of(B_map), row + ch * 64, kc, full.ptr_to([st]))

        @T.inline
        def load_a(st, i):
            for ch in T.unroll(KCH):
                kc = T.meta_var((begin + i) * BK + ch * 64)
                if NB > 1:
                    T.ptx[LOADM](As.ptr_to([st * A_EL + ch * (MP * 64) + rn * (A_ROWS * 64)]), T.address_of(A_map),
                                 kc, rn * A_ROWS, full.ptr_to([st]), T.Cast("uint16", T.int32(AMASK) << rk))
                else:
                    T.ptx[LOAD](As.ptr_to([st * A_EL + ch * (MP * 64)]), T.address_of(A_map), kc, 0, full.ptr_to([st]))

        if (wg == NC) & (warp == 0):
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(B_map))
                T.ptx.prefetch.tensormap(T.address_of(A_map))
            # One lane a barrier: short code matters while the instruction cache is cold.
            if lane < S:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([lane]), T.uint32(NC * 4 * NB))
            if SP > 1:
                if lane < RB:
                    T.ptx.mbarrier.init.shared.b64(red.ptr_to([lane]), T.uint32(1))
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(red.ptr_to([lane]), T.uint32(RED_BYTES))
            T.ptx.fence.mbarrier_init.release.cluster()
        if CS > 1:
            # The matching wait comes later, hidden behind the first loads.
            T.ptx.barrier.cluster.arrive.release.aligned()
        T.cuda.cta_sync()
        T.ptx.griddepcontrol.launch_dependents()

        if wg == NC:
            # ------------------------------------------------ producer
            if (warp == 0) & (lane == 0):
                if not c.early_b:
                    T.ptx.griddepcontrol.wait()
                # Needs no peer (and, with early_b, no earlier kernel): fill the ring before any other wait.
                while it < pre:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([it]), T.uint32(TX))
                    load_b(it, it)
                    if EARLY_A:
                        load_a(it, it)
                    it = it + 1
            if NB > 1:
                T.cuda.warp_sync()
                T.ptx.barrier.cluster.wait.acquire.aligned()
            if (warp == 0) & (lane == 0):
                if c.early_b:
                    T.ptx.griddepcontrol.wait()
                if not EARLY_A:
                    it = 0
                    while it < pre:
                        load_a(it, it)
                        it = it + 1
                it = pre
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
            if (CS > 1) & (NB == 1):
                T.cuda.warp_sync()
                T.ptx.barrier.cluster.wait.acquire.aligned()
        else:
            # ------------------------------------------------ consumers
            acc = T.alloc_local((NACC,), "float32")
            da0: T.uint64
            db0: T.uint64
            da: T.uint64
            db: T.uint64
            prev: T.int32
            rbuf: T.int32
            rphase: T.int32
            rbuf = 0
            rphase = 0
            # In a cluster a shared address carries the block's rank above bit 24; the descriptor has room for 18 bits.
            T.ptx.mov.b64(da0, ((T.cuda.cvta_generic_to_shared(Bs.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.Cast("uint32", wg * (MI * M64)) + T.uint32(HI_B & 0xFFFFFFFF), T.uint32(HI_B >> 32))
            T.ptx.mov.b64(db0, ((T.cuda.cvta_generic_to_shared(As.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.uint32(HI_A & 0xFFFFFFFF), T.uint32(HI_A >> 32))
            if NB > 1:
                rempty = T.alloc_local([1], "uint32")
                if lane < NB:
                    T.ptx.mapa.shared__cluster.u32(rempty[0], T.cuda.cvta_generic_to_shared(empty.ptr_to([0])),
                                                   T.Cast("uint32", lane * SP + rk))
            if CS > 1:
                T.ptx.barrier.cluster.wait.acquire.aligned()

            @T.inline
            def release(st):
                if NB > 1:
                    if lane < NB:
                        T.ptx.mbarrier.arrive.shared__cluster.b64(rempty[0] + T.Cast("uint32", st * 8))
                else:
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([st]), T.uint32(1))

            w = T.alloc_local((2,), "uint32")
            bval = T.alloc_local((1,), "float32")

            @T.inline
            def store8x8(row, col, x, y):
                # 8 columns of C x 8 of its rows, transposed in registers to the row-major C.
                if BIAS:
                    bval[0] = T.float32(0)
                    if row + lane // 4 < n:
                        bval[0] = T.Cast("float32", bias[row + lane // 4])
                    T.ptx[pack](w[0], activate(EPI, y + bval[0]), activate(EPI, x + bval[0]))
                else:
                    T.ptx[pack](w[0], y, x)
                T.ptx[MOVM](w[1], w[0])
                if (col + lane // 4 < m) & (row + lane % 4 * 2 < n):
                    T.ptx.st.global_.b32(C.ptr_to([col + lane // 4, row + lane % 4 * 2]), w[1])

            while ct < ctiles:
                for i in T.serial(cnt):
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    da = da0 + T.Cast("uint64", stage * (B_EL // 8))
                    db = db0 + T.Cast("uint64", stage * (A_EL // 8))
                    T.ptx.wgmma.fence.sync.aligned()
                    mma_block(acc, da, db, i > 0)
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if i > 0:
                        release(prev)
                    prev = stage
                    stage = stage + 1
                    if stage == S:
                        stage = 0
                        phase = phase ^ 1
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(prev)
                T.cuda.func_call(fence, acc.data, source_code=fence_src, return_type="void")

                n0: T.int32
                n0 = (ct * NB + rn) * BR
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
                            peer = T.meta_var(T.Cast("uint32", xrow // SLICE + rn * SP))
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
                        unit: T.int32
                        unit = q * (4 * NC) + wg * 4 + warp
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
        if NB > 1:
            # A peer's multicast may still be on its way to our shared memory.
            T.cuda.cluster_sync()
    # fmt: on
    return kernel
