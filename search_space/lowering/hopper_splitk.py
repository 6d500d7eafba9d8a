"""The GEMM kernel with k divided inside a cluster: TMA + mbarrier ring + wgmma, sums through distributed shared memory.

One cluster computes one tile (or cluster_m x cluster_n neighbouring ones, operands shared by multicast). Each part (a
block's share of k, or with two turns a warpgroup's every other stage of it) multiplies whole tiles; then the float32 sums
of column slice p go to part p, by st.async or within the block, which adds them in the order of the parts, so that the
result depends on no timing, and stores its slice. No workspace, no second kernel, no flag in memory.
"""

from tvm.script import tirx as T

from search_space.hopper.split import SplitTile
from search_space.hopper.tiles import CONSUMER_REGISTERS, PRODUCER_REGISTERS
from search_space.lowering import hopper_operands as operands
from search_space.lowering import hopper_ptx as ptx
from search_space.lowering.activation import activate


def split_kernel(c: SplitTile, entry: str = "main"):
    """PrimFunc `entry`(a, b[, bias], c, m, n, k, batch, group, by_n, grid)."""
    BM, BN, BK, S, NC, MI = c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.rows_of_64
    CM, CN, SP, CS = c.cluster_m, c.cluster_n, c.split, c.cluster
    (A, B), A_EL, B_EL = operands.strides(c), BM * BK, BN * BK
    NACC, EW, SW, KG, PARTS = c.accumulators, c.store_width, c.slice_width, c.turns, c.parts
    BATCH, EARLY, SHARED = c.batched, c.early_b, CM * CN > 1
    RANK = 3 if BATCH else 2
    PREG, CREG = PRODUCER_REGISTERS[NC], CONSUMER_REGISTERS[NC]
    dt, pack = c.dtype, f"cvt.rn.{ptx.WGMMA_TYPE[c.dtype]}x2.f32"
    LOAD, LOADM, STORE = ptx.tma_load(RANK, False), ptx.tma_load(RANK, True), ptx.tma_store(RANK)
    TMA_STORE, BIAS, EPI = c.store == "tma", c.epilogue != "none", c.epilogue
    mma_block, host_map = operands.multiply(c), operands.host_map_fields(c)
    HI_A, HI_B = ptx.descriptor_high(A["lead"], 64), ptx.descriptor_high(B["lead"], 64)
    # Rank in the cluster: share of k first, then the row of tiles, then the column.
    AMASK, BMASK = sum(1 << (SP * CM * j) for j in range(CN)), sum(1 << (SP * j) for j in range(CM))
    fence, fence_src = ptx.fence_accumulators(NACC)
    # Threads of a part; units of 8 columns and stores of a slice; bytes of the sums of a slice from one part, and of all.
    T4, CG, CHUNKS = NC // KG * 128, SW // 8, SW // EW
    PIECE, BOX = MI * CG * T4 * 16, BM * BN * 4
    SEND = "st_async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
    STAGING = c.exchange_bytes // 2  # element (16 bits) at which staged stores begin, behind the exchange

    def coords3(inner, outer, b):
        return [inner, outer, b] if BATCH else [inner, outer]

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32,
               batch: T.int32, group: T.int32, by_n: T.int32, clusters: T.int32):
        T.func_attr({"global_symbol": entry})
        Ab = T.match_buffer(A_ptr, (batch * m, k), dtype=dt, align=16)
        Bb = T.match_buffer(B_ptr, (batch * n, k), dtype=dt, align=16)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        C = T.match_buffer(C_ptr, (batch * m, n), dtype=dt, align=2)
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, dt, RANK, Ab.data, *host_map)
        B_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", B_map, dt, RANK, Bb.data, *host_map)
        if TMA_STORE:
            C_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
            T.call_packed("runtime.cuTensorMapEncodeTiled", C_map, dt, RANK, C.data, *host_map)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        if CS > 1:
            rank = T.cta_id_in_cluster([CS])
        bx = T.cta_id([clusters * CS])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        As = pool.alloc((S * A_EL,), dt, align=1024)
        Bs = pool.alloc((S * B_EL,), dt, align=1024)
        full = pool.alloc((S,), "uint64", align=8)
        empty = pool.alloc((S,), "uint64", align=8)
        red = pool.alloc((1,), "uint64", align=8)
        pool.commit()

        rk: T.int32 = rank % SP if CS > 1 else 0
        rm: T.int32 = rank // SP % CM if CS > 1 else 0
        rn: T.int32 = rank // (SP * CM) if CS > 1 else 0
        if (wg == 0) & (warp == 0):
            # One lane a barrier: short code matters while the instruction cache is cold.
            if lane < S:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([lane]), T.uint32(NC // KG * 4 * (CM + CN - 1)))
            if lane == 0:
                T.ptx.mbarrier.init.shared.b64(red.ptr_to([0]), T.uint32(1))
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(red.ptr_to([0]), T.uint32(c.exchange_bytes))
            T.ptx.fence.mbarrier_init.release.cluster()
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(A_map))
                T.ptx.prefetch.tensormap(T.address_of(B_map))
        if SHARED:
            T.cuda.cluster_sync()
        else:
            # Peers write here only after the cluster barrier behind the main loop.
            T.cuda.cta_sync()
        T.ptx.griddepcontrol.launch_dependents()

        # Raster: `group` rows (columns with by_n) of cluster tiles at a time, so that neighbours' operands stay in L2.
        mt: T.int32 = (m + BM * CM - 1) // (BM * CM)
        nt: T.int32 = (n + BN * CN - 1) // (BN * CN)
        tb: T.int32 = 0
        r: T.int32 = bx // CS
        if BATCH:
            tb = T.truncdiv(r, mt * nt)
            r = r - tb * (mt * nt)
        p_ext: T.int32 = T.if_then_else(by_n == 1, nt, mt)
        q_ext: T.int32 = T.if_then_else(by_n == 1, mt, nt)
        first: T.int32 = T.truncdiv(r, group * q_ext) * group
        r = r - first * q_ext
        cur: T.int32 = T.min(p_ext - first, group)
        v: T.int32 = T.truncdiv(r, cur)
        u: T.int32 = first + r - v * cur
        tm: T.int32 = (T.if_then_else(by_n == 1, v, u) * CM + rm) * BM
        tn: T.int32 = (T.if_then_else(by_n == 1, u, v) * CN + rn) * BN
        kt_all: T.int32 = (k + BK - 1) // BK
        kb: T.int32 = rk * kt_all // SP
        ke: T.int32 = (rk + 1) * kt_all // SP
        stage: T.int32 = 0
        phase: T.int32 = 0

        if wg == NC:
            # ------------------------------------------------ producer
            if PREG > 0:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(PREG)
            if (warp == 0) & (lane == 0):
                @T.inline
                def load_a(st, kt):
                    for ch in T.unroll(A["slabs"]):
                        xy = T.meta_var([tm + ch * 64, kt * BK] if c.trans_a else [kt * BK + ch * 64, tm])
                        if CN > 1:
                            T.ptx[LOADM](As.ptr_to([st * A_EL + ch * A["slab"] + rn * (A["rows"] // CN * 64)]),
                                         T.address_of(A_map), *coords3(xy[0], xy[1] + rn * (A["rows"] // CN), tb),
                                         full.ptr_to([st]), T.Cast("uint16", T.int32(AMASK) << (rk + SP * rm)))
                        else:
                            T.ptx[LOAD](As.ptr_to([st * A_EL + ch * A["slab"]]), T.address_of(A_map),
                                        *coords3(xy[0], xy[1], tb), full.ptr_to([st]))

                @T.inline
                def load_b(st, kt):
                    for ch in T.unroll(B["slabs"]):
                        xy = T.meta_var([kt * BK + ch * 64, tn] if c.trans_b else [tn + ch * 64, kt * BK])
                        if CM > 1:
                            T.ptx[LOADM](Bs.ptr_to([st * B_EL + ch * B["slab"] + rm * (B["rows"] // CM * 64)]),
                                         T.address_of(B_map), *coords3(xy[0], xy[1] + rm * (B["rows"] // CM), tb),
                                         full.ptr_to([st]), T.Cast("uint16", T.int32(BMASK) << (rk + SP * CM * rn)))
                        else:
                            T.ptx[LOAD](Bs.ptr_to([st * B_EL + ch * B["slab"]]), T.address_of(B_map),
                                        *coords3(xy[0], xy[1], tb), full.ptr_to([st]))

                pre: T.int32 = T.min(S, ke - kb)
                if EARLY:
                    # B does not depend on the previous kernel: fill the ring with it before waiting for that kernel.
                    i: T.int32 = 0
                    while i < pre:
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([i]), T.uint32(c.stage_bytes))
                        load_b(i, kb + i)
                        i = i + 1
                    T.ptx.griddepcontrol.wait()
                    i = 0
                    while i < pre:
                        load_a(i, kb + i)
                        i = i + 1
                    kb = kb + pre
                    stage = pre % S
                    phase = pre // S
                else:
                    T.ptx.griddepcontrol.wait()
                while kb < ke:
                    T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(c.stage_bytes))
                    load_a(stage, kb)
                    load_b(stage, kb)
                    kb = kb + 1
                    stage = stage + 1
                    if stage == S:
                        stage = 0
                        phase = phase ^ 1
            T.cuda.warp_sync()
            if CS > 1:
                T.cuda.cluster_sync()
            else:
                T.cuda.cta_sync()
        else:
            # ------------------------------------------------ consumers
            if CREG > 0:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(CREG)
            acc = T.alloc_local((NACC,), "float32")
            w = T.alloc_local((4,), "uint32")
            da0: T.uint64
            db0: T.uint64
            prev: T.int32
            # In a cluster a shared address carries the block's rank above bit 24; the descriptor has room for 18 bits.
            T.ptx.mov.b64(da0, ((T.cuda.cvta_generic_to_shared(As.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.Cast("uint32", wg * (MI * A["m64"] if KG == 1 else 0)) + T.uint32(HI_A & 0xFFFFFFFF), T.uint32(HI_A >> 32))
            T.ptx.mov.b64(db0, ((T.cuda.cvta_generic_to_shared(Bs.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.uint32(HI_B & 0xFFFFFFFF), T.uint32(HI_B >> 32))
            if SHARED:
                # Lane j releases the stage in the j-th block that writes into our shared memory.
                rempty = T.alloc_local([1], "uint32")
                tile_peer: T.int32 = T.if_then_else(lane < CM, rn * CM + lane,
                                         T.if_then_else(lane - CM < rn, (lane - CM) * CM + rm, (lane - CM + 1) * CM + rm))
                if lane < CM + CN - 1:
                    T.ptx.mapa.shared__cluster.u32(rempty[0], T.cuda.cvta_generic_to_shared(empty.ptr_to([0])),
                                                   T.Cast("uint32", tile_peer * SP + rk))

            @T.inline
            def release(st):
                if SHARED:
                    if lane < CM + CN - 1:
                        T.ptx.mbarrier.arrive.shared__cluster.b64(rempty[0] + T.Cast("uint32", st * 8))
                else:
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([st]), T.uint32(1))

            if KG > 1:
                kb = kb + wg
                stage = wg
            for kt in T.serial((ke - kb + KG - 1) // KG):
                T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                T.ptx.wgmma.fence.sync.aligned()
                mma_block(acc, da0 + T.Cast("uint64", stage * (A_EL // 8)), db0 + T.Cast("uint64", stage * (B_EL // 8)), kt > 0)
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(1)
                if kt > 0:
                    release(prev)
                prev = stage
                stage = stage + KG
                if stage >= S:
                    stage = stage - S
                    phase = phase ^ 1
            T.ptx.wgmma.wait_group.sync.aligned(0)
            T.cuda.func_call(fence, acc.data, source_code=fence_src, return_type="void")
            # All blocks of the cluster have used all their stages: the exchange may overwrite them.
            if CS > 1:
                T.cuda.cluster_sync()
            else:
                T.cuda.cta_sync()

            # -------------------------- exchange: [part of this block, source part, row block, unit, thread] of 4 floats
            group_of: T.int32 = wg if KG > 1 else 0
            part: T.int32 = rk * KG + group_of
            tid: T.int32 = (0 if KG > 1 else wg * 128) + warp * 32 + lane
            mail: T.uint32 = T.cuda.cvta_generic_to_shared(As.ptr_to([0])) + T.Cast("uint32", tid * 16)
            to = T.alloc_local([2], "uint32")
            for p in T.unroll(PARTS):
                box = T.meta_var(mail + T.Cast("uint32", p % KG * BOX + part * PIECE))
                if CS > 1:
                    owner = T.meta_var(T.Cast("uint32", p // KG + SP * (rm + CM * rn)))
                    T.ptx.mapa.shared__cluster.u32(to[0], box, owner)
                    T.ptx.mapa.shared__cluster.u32(to[1], T.cuda.cvta_generic_to_shared(red.ptr_to([0])), owner)
                for unit in T.unroll(MI * CG):
                    a0 = T.meta_var(unit // CG * (BN // 2) + (p * CG + unit % CG) * 4)
                    if CS > 1:
                        T.ptx[SEND](to[0] + T.Cast("uint32", unit * (T4 * 16)), acc[a0], acc[a0 + 1], acc[a0 + 2], acc[a0 + 3], to[1])
                    else:
                        T.ptx.st.shared.v4.f32(box + T.Cast("uint32", unit * (T4 * 16)), acc[a0], acc[a0 + 1], acc[a0 + 2], acc[a0 + 3])
            if CS > 1:
                T.cuda.mbarrier_wait(red.ptr_to([0]), 0)
            else:
                T.ptx.bar.sync(T.uint32(1), T.uint32(128 * NC))
            got = T.alloc_local((4,), "float32")
            for unit in T.unroll(MI * CG):
                for s in T.unroll(PARTS):
                    T.ptx.ld.shared.v4.f32(got[0], got[1], got[2], got[3],
                                           mail + T.Cast("uint32", group_of * BOX + s * PIECE + unit * (T4 * 16)))
                    for j in T.unroll(4):
                        if s == 0:
                            acc[unit * 4 + j] = got[j]
                        else:
                            acc[unit * 4 + j] = acc[unit * 4 + j] + got[j]

            # ------------------------------------------------ epilogue of columns [col, col + SW)
            col: T.int32 = tn + part * SW
            row0: T.int32 = tm + (0 if KG > 1 else wg * (MI * 64)) + warp * 16
            if BIAS:
                for cg in T.unroll(CG):
                    for e in T.unroll(2):
                        bcol: T.int32 = col + cg * 8 + lane % 4 * 2 + e
                        bval: T.float32 = T.float32(0)
                        if bcol < n:
                            bval = T.Cast("float32", bias[bcol])
                        for mi in T.unroll(MI):
                            for h in T.unroll(2):
                                ai = T.meta_var((mi * CG + cg) * 4 + h * 2 + e)
                                acc[ai] = activate(EPI, acc[ai] + bval)
            if TMA_STORE:
                for chunk in T.unroll(MI * CHUNKS):
                    ebase = T.meta_var(STAGING + ((wg * 4 + warp) * (MI * CHUNKS) + chunk) * (16 * EW))
                    for j in T.unroll(EW // 16):
                        a0 = T.meta_var((chunk * (EW // 8) + j * 2) * 4)
                        for q in T.unroll(4):
                            T.ptx[pack](w[q], acc[a0 + 2 * q + 1], acc[a0 + 2 * q])
                        er = T.meta_var(lane % 16)
                        T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                            As.ptr_to([ebase + er * EW + T.bitwise_xor(j * 2 + lane // 16, operands.swizzle_xor(EW, er)) * 8]),
                            w[0], w[1], w[2], w[3])
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.cuda.warp_sync()
                    if lane == 0:
                        T.ptx[STORE](T.address_of(C_map), *coords3(col + chunk % CHUNKS * EW, row0 + chunk // CHUNKS * 64, tb),
                                     As.ptr_to([ebase]))
                        T.ptx.cp.async_.bulk.commit_group()
                if lane == 0:
                    T.ptx.cp.async_.bulk.wait_group.read(0)
            else:
                for f in T.unroll(MI * CG * 2):
                    drow = T.meta_var(row0 + f // (2 * CG) * 64 + lane // 4 + f % 2 * 8)
                    dcol = T.meta_var(col + f % (2 * CG) // 2 * 8 + lane % 4 * 2)
                    T.ptx[pack](w[0], acc[f * 2 + 1], acc[f * 2])
                    if (drow < m) & (dcol < n):
                        T.ptx.st.global_.b32(C.ptr_to([tb * m + drow, dcol]), w[0])
    # fmt: on
    return kernel
