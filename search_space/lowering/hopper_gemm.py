"""The warp-specialised TMA + mbarrier + wgmma GEMM kernel, every extent a kernel parameter.

One producer thread keeps a ring of `stages` tiles of A and B in flight; consumer warpgroups multiply. With `stream_k`
the k iterations of the first `stream_tiles` tiles are dealt out evenly to the clusters (arXiv:2301.03598); the cluster
that holds a tile's first iteration adds the others' float32 partial sums in ascending order of k, so the result does
not depend on timing.
"""

from tvm.script import tirx as T

from search_space.hopper.tiles import CONSUMER_REGISTERS, PRODUCER_REGISTERS, Tile
from search_space.lowering import hopper_operands as operands
from search_space.lowering import hopper_ptx as ptx
from search_space.lowering.activation import activate


def gemm_kernel(c: Tile, entry: str = "main"):
    """PrimFunc `entry`(a, b[, bias][, partial, flags], c, scalars). See `launch` in each sketch for the scalars."""
    BM, BN, BK, S, NC, MI = c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.rows_of_64
    CM, CN, CS = c.cluster_m, c.cluster_n, c.cluster
    (A, B), A_EL, B_EL = operands.strides(c), BM * BK, BN * BK
    NACC, EW, EB = c.accumulators, c.store_width, c.store_buffers
    PP, SK, BATCH, EARLY = c.pingpong, c.stream_k, c.batched, c.early_b
    OWN, RANK = 1 if PP else NC, 3 if BATCH else 2  # consumers that read one stage; dimensions of a tensor map
    PREG, CREG = PRODUCER_REGISTERS[NC], CONSUMER_REGISTERS[NC]
    dt, pack = c.dtype, f"cvt.rn.{ptx.WGMMA_TYPE[c.dtype]}x2.f32"
    LOAD, LOADM, STORE = ptx.tma_load(RANK, False), ptx.tma_load(RANK, True), ptx.tma_store(RANK)
    TMA_STORE, STAGED, BIAS, EPI = c.store == "tma", c.store != "direct", c.epilogue != "none", c.epilogue
    mma_block, host_map = operands.multiply(c), operands.host_map_fields(c)
    HI_A, HI_B = ptx.descriptor_high(A["lead"], 64), ptx.descriptor_high(B["lead"], 64)
    AMASK, BMASK = sum(1 << (CM * j) for j in range(CN)), (1 << CM) - 1
    fence, fence_src = ptx.fence_accumulators(NACC)
    (put, put_src), (add, add_src) = ptx.put_partial(NACC), ptx.add_partial(NACC)
    CHUNKS, ODD = BN // EW, MI * (BN // EW) % EB != 0

    def coords3(inner, outer, b):
        return [inner, outer, b] if BATCH else [inner, outer]

    def more(pos, pos_end, tile, total):
        return ((pos < pos_end) | (tile < total)) if SK else (tile < total)

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, bias_ptr: T.handle, partial_ptr: T.handle, flags_ptr: T.handle,
               C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32, batch: T.int32, group: T.int32, by_n: T.int32,
               clusters: T.int32, stream_tiles: T.int32):
        T.func_attr({"global_symbol": entry})
        Ab = T.match_buffer(A_ptr, (batch * m, k), dtype=dt, align=16)
        Bb = T.match_buffer(B_ptr, (batch * n, k), dtype=dt, align=16)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        partial = T.match_buffer(partial_ptr, (clusters * CS * BM * BN,), dtype="float32", align=16)
        flags = T.match_buffer(flags_ptr, (clusters * CS * NC * 4,), dtype="int32", align=4)
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
        if STAGED:
            Es = pool.alloc((NC * 4 * EB * 16 * EW,), dt, align=1024)
        full = pool.alloc((S,), "uint64", align=8)
        empty = pool.alloc((S,), "uint64", align=8)
        pool.commit()

        rm: T.int32 = rank % CM if CS > 1 else 0
        rn: T.int32 = rank // CM if CS > 1 else 0
        if (wg == 0) & (warp == 0):
            # One lane a barrier: short code matters while the instruction cache is cold.
            if lane < S:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([lane]), T.uint32(OWN * 4 * (CM + CN - 1)))
            T.ptx.fence.mbarrier_init.release.cluster()
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(A_map))
                T.ptx.prefetch.tensormap(T.address_of(B_map))
        if CS > 1:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        T.ptx.griddepcontrol.launch_dependents()

        stage: T.int32 = 0
        phase: T.int32 = 0
        mt: T.int32 = (m + BM * CM - 1) // (BM * CM)
        nt: T.int32 = (n + BN * CN - 1) // (BN * CN)
        kt_all: T.int32 = (k + BK - 1) // BK
        total: T.int32 = mt * nt * batch if BATCH else mt * nt
        cid: T.int32 = bx // CS
        tile: T.int32 = cid
        kb: T.int32 = 0
        ke: T.int32 = kt_all
        pos: T.int32
        pos_end: T.int32
        tm: T.int32
        tn: T.int32
        tb: T.int32 = 0
        if SK:
            # `pos` walks this cluster's share of the iterations of the first stream_tiles tiles.
            pos = T.truncdiv(cid * (stream_tiles * kt_all), clusters)
            pos_end = T.truncdiv((cid + 1) * (stream_tiles * kt_all), clusters)
            tile = stream_tiles + cid

        @T.inline
        def locate(t):
            # Raster: `group` rows (columns with by_n) of tiles at a time, so that a wave's operands stay in L2.
            r: T.int32 = t
            if BATCH:
                tb = T.truncdiv(t, mt * nt)
                r = t - tb * (mt * nt)
            p_ext: T.int32 = T.if_then_else(by_n == 1, nt, mt)
            q_ext: T.int32 = T.if_then_else(by_n == 1, mt, nt)
            first: T.int32 = T.truncdiv(r, group * q_ext) * group
            r = r - first * q_ext
            cur: T.int32 = T.min(p_ext - first, group)
            v: T.int32 = T.truncdiv(r, cur)
            u: T.int32 = first + r - v * cur
            tm = (T.if_then_else(by_n == 1, v, u) * CM + rm) * BM
            tn = (T.if_then_else(by_n == 1, u, v) * CN + rn) * BN

        @T.inline
        def next_work():
            if SK:
                if pos < pos_end:
                    st_tile: T.int32 = T.truncdiv(pos, kt_all)
                    kb = pos - st_tile * kt_all
                    ke = T.min(kt_all, kb + pos_end - pos)
                    pos = pos + ke - kb
                    locate(st_tile)
                else:
                    kb = 0
                    ke = kt_all
                    locate(tile)
                    tile = tile + clusters
            else:
                locate(tile)
                tile = tile + clusters

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
                                         full.ptr_to([st]), T.Cast("uint16", T.int32(AMASK) << rm))
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
                                         full.ptr_to([st]), T.Cast("uint16", T.int32(BMASK) << (rn * CM)))
                        else:
                            T.ptx[LOAD](Bs.ptr_to([st * B_EL + ch * B["slab"]]), T.address_of(B_map),
                                        *coords3(xy[0], xy[1], tb), full.ptr_to([st]))

                kt: T.int32
                if EARLY:
                    # B does not depend on the previous kernel: fill the ring with it before waiting for that kernel.
                    if more(pos, pos_end, tile, total):
                        next_work()
                        pre: T.int32 = T.min(S, ke - kb)
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
                        kt = kb + pre
                        stage = pre % S
                        phase = pre // S
                        while kt < ke:
                            T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(c.stage_bytes))
                            load_b(stage, kt)
                            load_a(stage, kt)
                            kt = kt + 1
                            stage = stage + 1
                            if stage == S:
                                stage = 0
                                phase = phase ^ 1
                else:
                    T.ptx.griddepcontrol.wait()
                while more(pos, pos_end, tile, total):
                    next_work()
                    kt = kb
                    while kt < ke:
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(c.stage_bytes))
                        load_a(stage, kt)
                        load_b(stage, kt)
                        kt = kt + 1
                        stage = stage + 1
                        if stage == S:
                            stage = 0
                            phase = phase ^ 1
        else:
            # ------------------------------------------------ consumers
            if CREG > 0:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(CREG)
            acc = T.alloc_local((NACC,), "float32")
            w = T.alloc_local((4,), "uint32")
            half = T.alloc_local((2,), "uint16")
            da0: T.uint64
            db0: T.uint64
            da: T.uint64
            db: T.uint64
            prev: T.int32
            row0: T.int32
            # In a cluster a shared address carries the block's rank above bit 24; the descriptor has room for 18 bits.
            wg_rows = T.meta_var(0 if PP else wg * (MI * A["m64"]))
            T.ptx.mov.b64(da0, ((T.cuda.cvta_generic_to_shared(As.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.Cast("uint32", wg_rows) + T.uint32(HI_A & 0xFFFFFFFF), T.uint32(HI_A >> 32))
            T.ptx.mov.b64(db0, ((T.cuda.cvta_generic_to_shared(Bs.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.uint32(HI_B & 0xFFFFFFFF), T.uint32(HI_B >> 32))
            rempty = T.alloc_local([1], "uint32")
            if CS > 1:
                # Lane j releases the stage in the j-th block that writes into our shared memory.
                peer: T.int32 = T.if_then_else(lane < CM, rn * CM + lane,
                                      T.if_then_else(lane - CM < rn, (lane - CM) * CM + rm, (lane - CM + 1) * CM + rm))
                if lane < CM + CN - 1:
                    T.ptx.mapa.shared__cluster.u32(rempty[0], T.cuda.cvta_generic_to_shared(empty.ptr_to([0])),
                                                   T.Cast("uint32", peer))

            @T.inline
            def release(st):
                if CS > 1:
                    if lane < CM + CN - 1:
                        T.ptx.mbarrier.arrive.shared__cluster.b64(rempty[0] + T.Cast("uint32", st * 8))
                else:
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([st]), T.uint32(1))

            @T.inline
            def skip(tiles):
                # Ping-pong: step over the stages of tiles that the other consumers own.
                ahead: T.int32 = stage + tiles * kt_all
                stage = ahead % S
                phase = phase ^ (ahead // S % 2)

            @T.inline
            def store_row(row, col0, base, r):
                # One row by one warp. Where the row starts on an odd element, pairs are shifted by one column and the
                # two columns left over go out as 2-byte stores.
                shift: T.int32 = (row + tb * m) & n & 1
                x0: T.int32 = lane * 2 + shift
                x1: T.int32 = T.min(x0 + 1, EW - 1)
                if x0 < EW:
                    T.ptx.ld.shared.b16(half[0], Es.ptr_to([base + T.bitwise_xor(x0 // 8, operands.swizzle_xor(EW, r)) * 8 + x0 % 8]))
                    T.ptx.ld.shared.b16(half[1], Es.ptr_to([base + T.bitwise_xor(x1 // 8, operands.swizzle_xor(EW, r)) * 8 + x1 % 8]))
                    if row < m:
                        if (x0 < EW - 1) & (col0 + x0 + 1 < n):
                            T.ptx.st.global_.b32(C.ptr_to([tb * m + row, col0 + x0]),
                                                 T.Cast("uint32", half[0]) | (T.Cast("uint32", half[1]) << T.uint32(16)))
                        elif col0 + x0 < n:
                            T.ptx.st.global_.b16(C.ptr_to([tb * m + row, col0 + x0]), half[0])
                        if (shift == 1) & (lane == 0) & (col0 < n):
                            T.ptx.ld.shared.b16(half[0], Es.ptr_to([base + T.bitwise_xor(0, operands.swizzle_xor(EW, r)) * 8]))
                            T.ptx.st.global_.b16(C.ptr_to([tb * m + row, col0]), half[0])

            @T.inline
            def store_tile():
                if BIAS:
                    for cg in T.unroll(BN // 8):
                        for e in T.unroll(2):
                            bcol: T.int32 = tn + cg * 8 + lane % 4 * 2 + e
                            bval: T.float32 = T.float32(0)
                            if bcol < n:
                                bval = T.Cast("float32", bias[bcol])
                            for mi in T.unroll(MI):
                                for h in T.unroll(2):
                                    ai = T.meta_var(mi * (BN // 2) + cg * 4 + h * 2 + e)
                                    acc[ai] = activate(EPI, acc[ai] + bval)
                if STAGED:
                    for chunk in T.unroll(MI * CHUNKS):
                        ebase = T.meta_var(((wg * 4 + warp) * EB + chunk % EB) * (16 * EW))
                        if TMA_STORE:
                            # With an odd number of chunks a tile's first one takes the buffer of the last tile's last.
                            if ODD:
                                if (lane == 0) & (chunk == 0):
                                    T.ptx.cp.async_.bulk.wait_group.read(0)
                            if lane == 0:
                                T.ptx.cp.async_.bulk.wait_group.read(EB - 1)
                        T.cuda.warp_sync()
                        for j in T.unroll(EW // 16):
                            a0 = T.meta_var(chunk * (EW // 2) + j * 8)
                            for q in T.unroll(4):
                                T.ptx[pack](w[q], acc[a0 + 2 * q + 1], acc[a0 + 2 * q])
                            er = T.meta_var(lane % 16)
                            T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                                Es.ptr_to([ebase + er * EW + T.bitwise_xor(j * 2 + lane // 16, operands.swizzle_xor(EW, er)) * 8]),
                                w[0], w[1], w[2], w[3])
                        if TMA_STORE:
                            T.ptx.fence.proxy.async_.shared__cta()
                            T.cuda.warp_sync()
                            if lane == 0:
                                T.ptx[STORE](T.address_of(C_map), *coords3(tn + chunk % CHUNKS * EW, row0 + chunk // CHUNKS * 64, tb),
                                             Es.ptr_to([ebase]))
                                T.ptx.cp.async_.bulk.commit_group()
                        else:
                            T.cuda.warp_sync()
                            for r in T.unroll(16):
                                store_row(row0 + chunk // CHUNKS * 64 + r, tn + chunk % CHUNKS * EW, ebase + r * EW, r)
                else:
                    for f in T.unroll(MI * BN // 4):
                        drow = T.meta_var(row0 + f // (BN // 4) * 64 + lane // 4 + f % 2 * 8)
                        dcol = T.meta_var(tn + f % (BN // 4) // 2 * 8 + lane % 4 * 2)
                        T.ptx[pack](w[0], acc[f * 2 + 1], acc[f * 2])
                        if (drow < m) & (dcol < n):
                            T.ptx.st.global_.b32(C.ptr_to([tb * m + drow, dcol]), w[0])

            if PP:
                # Main loops take turns (named barriers 2 and 3), as their stages do in the ring. A consumer that waited
                # for stages of a later lap would take an earlier lap's phase of the same parity for its own.
                if wg == 1:
                    T.ptx.bar.arrive(T.uint32(2), T.uint32(256))
                tile = tile + wg * clusters
                skip(wg)
            while more(pos, pos_end, tile, total):
                next_work()
                if PP:
                    tile = tile + (NC - 1) * clusters
                row0 = tm + warp * 16 if PP else tm + wg * (MI * 64) + warp * 16
                if PP:
                    T.ptx.bar.sync(T.Cast("uint32", wg + 2), T.uint32(256))
                for kt in T.serial(ke - kb):
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    da = da0 + T.Cast("uint64", stage * (A_EL // 8))
                    db = db0 + T.Cast("uint64", stage * (B_EL // 8))
                    T.ptx.wgmma.fence.sync.aligned()
                    mma_block(acc, da, db, kt > 0)
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if kt > 0:
                        release(prev)
                    prev = stage
                    stage = stage + 1
                    if stage == S:
                        stage = 0
                        phase = phase ^ 1
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(prev)
                T.cuda.func_call(fence, acc.data, source_code=fence_src, return_type="void")
                if PP:
                    T.ptx.bar.arrive(T.Cast("uint32", 3 - wg), T.uint32(256))
                    skip(NC - 1)
                if SK:
                    slot = T.meta_var(((bx * NC + wg) * 4 + warp) * (NACC * 32))
                    if kb > 0:
                        T.cuda.func_call(put, acc.data, partial.ptr_to([slot]), flags.ptr_to([(bx * NC + wg) * 4 + warp]),
                                         source_code=put_src, return_type="void")
                    else:
                        have: T.int32 = ke
                        other: T.int32 = cid + 1
                        while have < kt_all:
                            ob: T.int32 = other * CS + bx % CS
                            T.cuda.func_call(add, acc.data, partial.ptr_to([((ob * NC + wg) * 4 + warp) * (NACC * 32)]),
                                             flags.ptr_to([(ob * NC + wg) * 4 + warp]), source_code=add_src, return_type="void")
                            have = (have + T.truncdiv((other + 1) * (stream_tiles * kt_all), clusters)
                                    - T.truncdiv(other * (stream_tiles * kt_all), clusters))
                            other = other + 1
                        store_tile()
                else:
                    store_tile()
            if TMA_STORE:
                if lane == 0:
                    T.ptx.cp.async_.bulk.wait_group.read(0)
        if CS > 1:
            T.cuda.cluster_sync()
    # fmt: on
    return kernel
