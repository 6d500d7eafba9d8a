"""The K-major tile kernel: TMA + mbarrier ring + wgmma for float8 (scaled per tensor or per block) and 16-bit operands,
one B for all rows or one for each group of rows (mixture of experts). Every extent is a kernel parameter.

One producer thread keeps a ring of `stages` in flight; consumer warpgroups multiply. With `promote` each stage's
products go to registers of their own and are added, times their scale, to the float32 sums by ordinary multiply-adds.
"""

from tvm.script import tirx as T

from search_space.gemm import SCALE_BLOCK
from search_space.hopper.kmajor import SLAB_BYTES, KTile
from search_space.hopper.tiles import CONSUMER_REGISTERS, PRODUCER_REGISTERS
from search_space.lowering import hopper_ptx as ptx
from search_space.lowering.activation import activate
from search_space.lowering.hopper_kmajor_parts import multiply, promote
from search_space.lowering.hopper_operands import swizzle_xor


def kmajor_kernel(c: KTile, entry: str = "main"):
    """PrimFunc `entry`(a, b[, a_scale, b_scale][, bias][, offsets | counts], c, scalars); see KTile.launch."""
    BM, BN, BK, S, NC, MI = c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.rows_of_64
    CM, CN, CS, SLABS = c.cluster_m, c.cluster_n, c.cluster, c.slabs
    A_B, B_B, A_ROWS, B_ROWS, WIDE = c.a_bytes, c.b_bytes, BM // CN, BN // CM, SLAB_BYTES // c.itemsize
    NACC, EW, EB = MI * BN // 2, c.store_width, c.store_buffers
    PP, GROUPED, CONTIGUOUS = c.pingpong, c.grouped, c.grouping == "contiguous"
    PROMOTE, OVERLAP, TENSOR, BLOCK = c.promote, c.overlap, c.scales == "tensor", c.scales == "block"
    OWN, PREG, CREG = 1 if PP else NC, PRODUCER_REGISTERS[NC], CONSUMER_REGISTERS[NC]
    dt = c.dtype_out
    pack = f"cvt.rn.{ptx.WGMMA_TYPE[dt]}x2.f32"
    LOAD_A, LOAD_B, STORE = ptx.tma_load(2, CN > 1), ptx.tma_load(3 if GROUPED else 2, CM > 1), ptx.tma_store(2)
    TMA_STORE, STAGED, BIAS, EPI = c.store == "tma", c.store != "direct", c.epilogue != "none", c.epilogue
    mma_block = multiply(c, 1 if c.promote else MI)
    HI = ptx.descriptor_high(1, 64)
    AMASK, BMASK = sum(1 << (CM * j) for j in range(CN)), (1 << CM) - 1
    fence, fence_src = ptx.fence_accumulators(BN // 2 if c.promote else NACC)
    add, add_src = promote(BN // 2)
    CHUNKS, ODD = BN // EW, MI * (BN // EW) % EB != 0
    UNITS = EW // 8  # of 16 bytes in a row of a staged chunk
    fields2, fields3 = (
        [64] * 2 + [128] + [8] * 2 + [1] * 2 + [0, 3, 3, 0],
        [64] * 3 + [128] * 2 + [8] * 3 + [1] * 3 + [0, 3, 3, 0],
    )

    # fmt: off
    @T.prim_func
    def kernel(A_ptr: T.handle, B_ptr: T.handle, a_scale_ptr: T.handle, b_scale_ptr: T.handle, bias_ptr: T.handle,
               ends_ptr: T.handle, C_ptr: T.handle, m: T.int32, n: T.int32, k: T.int32, groups: T.int32, rows: T.int32,
               group: T.int32, by_n: T.int32, clusters: T.int32):
        T.func_attr({"global_symbol": entry})
        Ab = T.match_buffer(A_ptr, (rows, k), dtype="uint8", align=16)
        Bb = T.match_buffer(B_ptr, (groups * n, k), dtype="uint8", align=16)
        a_scale = T.match_buffer(a_scale_ptr, (rows * k,), dtype="float32", align=4)
        b_scale = T.match_buffer(b_scale_ptr, (groups * n * k,), dtype="float32", align=4)
        bias = T.match_buffer(bias_ptr, (n,), dtype=dt, align=2)
        ends = T.match_buffer(ends_ptr, (groups,), dtype="int32", align=4)
        C = T.match_buffer(C_ptr, (rows, n), dtype=dt, align=2)
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, "uint8", 2, Ab.data, *fields2)
        B_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        if GROUPED:
            T.call_packed("runtime.cuTensorMapEncodeTiled", B_map, "uint8", 3, Bb.data, *fields3)
        else:
            T.call_packed("runtime.cuTensorMapEncodeTiled", B_map, "uint8", 2, Bb.data, *fields2)
        if TMA_STORE:
            C_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
            T.call_packed("runtime.cuTensorMapEncodeTiled", C_map, dt, 2, C.data, *fields2)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        if CS > 1:
            rank = T.cta_id_in_cluster([CS])
        bx = T.cta_id([clusters * CS])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        As = pool.alloc((S * A_B,), "uint8", align=1024)
        Bs = pool.alloc((S * B_B,), "uint8", align=1024)
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
        T.ptx.griddepcontrol.wait()

        stage: T.int32 = 0
        phase: T.int32 = 0
        nt: T.int32 = (n + BN * CN - 1) // (BN * CN)
        kt_all: T.int32 = (k + BK - 1) // BK
        tile: T.int32 = bx // CS
        tm: T.int32
        tn: T.int32
        # This group's rows: first, one behind the last; its tiles: first, one behind the last.
        g: T.int32 = 0
        row_begin: T.int32 = 0
        row_end: T.int32 = rows
        tile_begin: T.int32 = 0
        tile_end: T.int32 = 0
        if not GROUPED:
            tile_end = (m + BM * CM - 1) // (BM * CM) * nt

        @T.inline
        def read_group():
            if CONTIGUOUS:
                row_begin = T.if_then_else(g == 0, 0, row_end)
                row_end = T.max(row_begin, T.min(ends[g], rows))
            else:
                row_begin = g * m
                row_end = row_begin + T.max(0, T.min(ends[g], m))
            tile_begin = tile_end
            tile_end = tile_begin + (row_end - row_begin + BM * CM - 1) // (BM * CM) * nt

        @T.inline
        def seek():
            # Tiles are numbered group after group; this block's numbers only grow.
            if GROUPED:
                while (tile >= tile_end) & (g < groups - 1):
                    g = g + 1
                    read_group()

        @T.inline
        def locate():
            # Raster: `group` rows (columns with by_n) of tiles at a time, so that a wave's operands stay in L2.
            mt: T.int32 = (tile_end - tile_begin) // nt
            r: T.int32 = tile - tile_begin
            p_ext: T.int32 = T.if_then_else(by_n == 1, nt, mt)
            q_ext: T.int32 = T.if_then_else(by_n == 1, mt, nt)
            first: T.int32 = T.truncdiv(r, group * q_ext) * group
            r = r - first * q_ext
            cur: T.int32 = T.min(p_ext - first, group)
            v: T.int32 = T.truncdiv(r, cur)
            u: T.int32 = first + r - v * cur
            tm = row_begin + (T.if_then_else(by_n == 1, v, u) * CM + rm) * BM
            tn = (T.if_then_else(by_n == 1, u, v) * CN + rn) * BN

        if GROUPED:
            read_group()

        if wg == NC:
            # ------------------------------------------------ producer
            if PREG > 0:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(PREG)
            if (warp == 0) & (lane == 0):
                seek()
                while tile < tile_end:
                    locate()
                    for kt in T.serial(kt_all):
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(c.stage_bytes))
                        for ch in T.unroll(SLABS):
                            kc = T.meta_var(kt * BK + ch * WIDE)
                            sa = T.meta_var(stage * A_B + ch * (BM * SLAB_BYTES) + rn * (A_ROWS * SLAB_BYTES))
                            sb = T.meta_var(stage * B_B + ch * (BN * SLAB_BYTES) + rm * (B_ROWS * SLAB_BYTES))
                            if CN > 1:
                                T.ptx[LOAD_A](As.ptr_to([sa]), T.address_of(A_map), kc, tm + rn * A_ROWS,
                                              full.ptr_to([stage]), T.Cast("uint16", T.int32(AMASK) << rm))
                            else:
                                T.ptx[LOAD_A](As.ptr_to([sa]), T.address_of(A_map), kc, tm, full.ptr_to([stage]))
                            at_b = T.meta_var([kc, tn + rm * B_ROWS, g] if GROUPED else [kc, tn + rm * B_ROWS])
                            if CM > 1:
                                T.ptx[LOAD_B](Bs.ptr_to([sb]), T.address_of(B_map), *at_b, full.ptr_to([stage]),
                                              T.Cast("uint16", T.int32(BMASK) << (rn * CM)))
                            else:
                                T.ptx[LOAD_B](Bs.ptr_to([sb]), T.address_of(B_map), *at_b, full.ptr_to([stage]))
                        stage = stage + 1
                        if stage == S:
                            stage = 0
                            phase = phase ^ 1
                    tile = tile + clusters
                    seek()
        else:
            # ------------------------------------------------ consumers
            if CREG > 0:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(CREG)
            acc = T.alloc_local((NACC,), "float32")
            w = T.alloc_local((4,), "uint32")
            da0: T.uint64
            db0: T.uint64
            da: T.uint64 = T.uint64(0)
            db: T.uint64 = T.uint64(0)
            prev: T.int32 = 0
            row0: T.int32
            # In a cluster a shared address carries the block's rank above bit 24; the descriptor has room for 18 bits.
            wg_rows = T.meta_var(0 if PP else wg * (MI * 512))
            T.ptx.mov.b64(da0, ((T.cuda.cvta_generic_to_shared(As.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.Cast("uint32", wg_rows) + T.uint32(HI & 0xFFFFFFFF), T.uint32(HI >> 32))
            T.ptx.mov.b64(db0, ((T.cuda.cvta_generic_to_shared(Bs.ptr_to([0])) & T.uint32(ptx.ADDRESS_BITS)) >> T.uint32(4))
                          + T.uint32(HI & 0xFFFFFFFF), T.uint32(HI >> 32))
            rempty = T.alloc_local([1], "uint32")
            if CS > 1:
                # Lane j releases the stage in the j-th block that writes into our shared memory.
                peer: T.int32 = T.if_then_else(lane < CM, rn * CM + lane,
                                      T.if_then_else(lane - CM < rn, (lane - CM) * CM + rm, (lane - CM + 1) * CM + rm))
                if lane < CM + CN - 1:
                    T.ptx.mapa.shared__cluster.u32(rempty[0], T.cuda.cvta_generic_to_shared(empty.ptr_to([0])),
                                                   T.Cast("uint32", peer))
            scale = T.alloc_local((1,), "float32")
            if TENSOR:
                scale[0] = a_scale[0] * b_scale[0]
            if PROMOTE:
                part = T.alloc_local((BN // 2,), "float32")
                if OVERLAP:
                    part2 = T.alloc_local((BN // 2,), "float32")
                row_scale = T.alloc_local((2 * MI,), "float32")
                next_scale = T.alloc_local((2 * MI + 1,), "float32")

            @T.inline
            def release(st):
                if CS > 1:
                    if lane < CM + CN - 1:
                        T.ptx.mbarrier.arrive.shared__cluster.b64(rempty[0] + T.Cast("uint32", st * 8))
                else:
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([st]), T.uint32(1))

            @T.inline
            def read_scales(kt):
                # Of rows beyond the last one: the last one's, their products are not stored.
                kb: T.int32 = T.min(kt, kt_all - 1)
                for h in T.unroll(2 * MI):
                    next_scale[h] = a_scale[kb * rows + T.min(row0 + lane // 4 + h // 2 * 64 + h % 2 * 8, rows - 1)]
                columns: T.int32 = (n + SCALE_BLOCK - 1) // SCALE_BLOCK
                next_scale[2 * MI] = b_scale[(g * columns + T.min(tn // SCALE_BLOCK, columns - 1)) * kt_all + kb]

            @T.inline
            def advance():
                stage = stage + 1
                if stage == S:
                    stage = 0
                    phase = phase ^ 1

            @T.inline
            def skip_tile():
                # Ping-pong: step over the stages of a tile that the other consumer owns.
                ahead: T.int32 = stage + kt_all
                stage = ahead % S
                phase = phase ^ (ahead // S % 2)

            @T.inline
            def main_loop():
                for kt in T.serial(kt_all):
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    da = da0 + T.Cast("uint64", stage * (A_B // 16))
                    db = db0 + T.Cast("uint64", stage * (B_B // 16))
                    T.ptx.wgmma.fence.sync.aligned()
                    mma_block(acc, da, db, T.ptx.pred(kt > 0))
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    if kt > 0:
                        release(prev)
                    prev = stage
                    advance()
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(prev)
                T.cuda.func_call(fence, acc.data, source_code=fence_src, return_type="void")

            @T.inline
            def begin_sums():
                for i in T.unroll(NACC):
                    acc[i] = T.float32(0)
                for h in T.unroll(2 * MI):
                    row_scale[h] = T.float32(1)
                if BLOCK:
                    read_scales(0)

            @T.inline
            def take_scales(kt):
                if BLOCK:
                    for h in T.unroll(2 * MI):
                        row_scale[h] = next_scale[h] * next_scale[2 * MI]
                    read_scales(kt + 1)

            @T.inline
            def issue(products, mi):
                da = da0 + T.Cast("uint64", stage * (A_B // 16) + mi * 512)
                db = db0 + T.Cast("uint64", stage * (B_B // 16))
                T.ptx.wgmma.fence.sync.aligned()
                mma_block(products, da, db, T.bool(False))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def add_products(products, mi):
                T.cuda.func_call(fence, products.data, source_code=fence_src, return_type="void")
                T.cuda.func_call(add, T.address_of(acc[mi * (BN // 2)]), products.data, T.address_of(row_scale[2 * mi]),
                                 source_code=add_src, return_type="void")

            @T.inline
            def promoted_loop():
                begin_sums()
                for kt in T.serial(kt_all):
                    take_scales(kt)
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    for mi in T.unroll(MI):
                        issue(part, mi)
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        if mi == MI - 1:
                            release(stage)
                        add_products(part, mi)
                    advance()

            @T.inline
            def next_products(kt, done, begun):
                # Stage kt's products are in `done` once those of stage kt + 1, in `begun`, are under way.
                take_scales(kt)
                T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                issue(begun, 0)
                T.ptx.wgmma.wait_group.sync.aligned(1)
                release(prev)
                prev = stage
                advance()
                add_products(done, 0)

            @T.inline
            def last_products(done):
                take_scales(kt_all - 1)
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(prev)
                add_products(done, 0)

            @T.inline
            def overlapped_loop():
                begin_sums()
                T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                issue(part, 0)
                prev = stage
                advance()
                for pair in T.serial((kt_all - 1) // 2):
                    next_products(2 * pair, part, part2)
                    next_products(2 * pair + 1, part2, part)
                if kt_all % 2 == 0:
                    next_products(kt_all - 2, part, part2)
                    last_products(part2)
                else:
                    last_products(part)

            @T.inline
            def store_tile():
                if TENSOR:
                    for i in T.unroll(NACC):
                        acc[i] = acc[i] * scale[0]
                if BIAS:
                    for cg in T.unroll(BN // 8):
                        for e in T.unroll(2):
                            bcol = T.meta_var(tn + cg * 8 + lane % 4 * 2 + e)
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
                                Es.ptr_to([ebase + er * EW + T.bitwise_xor(j * 2 + lane // 16, swizzle_xor(EW, er)) * 8]),
                                w[0], w[1], w[2], w[3])
                        if TMA_STORE:
                            T.ptx.fence.proxy.async_.shared__cta()
                            T.cuda.warp_sync()
                            if lane == 0:
                                T.ptx[STORE](T.address_of(C_map), tn + chunk % CHUNKS * EW, row0 + chunk // CHUNKS * 64,
                                             Es.ptr_to([ebase]))
                                T.ptx.cp.async_.bulk.commit_group()
                        else:
                            T.cuda.warp_sync()
                            for q in T.unroll(16 * UNITS // 32):
                                sr = T.meta_var((q * 32 + lane) // UNITS)
                                su = T.meta_var((q * 32 + lane) % UNITS)
                                drow = T.meta_var(row0 + chunk // CHUNKS * 64 + sr)
                                dcol = T.meta_var(tn + chunk % CHUNKS * EW + su * 8)
                                if (drow < row_end) & (dcol < n):
                                    T.ptx.ld.shared.v4.b32(w[0], w[1], w[2], w[3],
                                                           Es.ptr_to([ebase + sr * EW + T.bitwise_xor(su, swizzle_xor(EW, sr)) * 8]))
                                    T.ptx.st.global_.v4.b32(C.ptr_to([drow, dcol]), w[0], w[1], w[2], w[3])
                else:
                    for f in T.unroll(MI * BN // 4):
                        drow = T.meta_var(row0 + f // (BN // 4) * 64 + lane // 4 + f % 2 * 8)
                        dcol = T.meta_var(tn + f % (BN // 4) // 2 * 8 + lane % 4 * 2)
                        for e in T.unroll(2):
                            if (drow < row_end) & (dcol + e < n):
                                C[drow, dcol + e] = T.Cast(dt, acc[f * 2 + e])

            seek()
            if PP:
                # Main loops take turns (named barriers 2 and 3), as their stages do in the ring.
                if wg == 1:
                    T.ptx.bar.arrive(T.uint32(2), T.uint32(256))
                    tile = tile + clusters
                    skip_tile()
                    seek()
            while tile < tile_end:
                locate()
                row0 = tm + warp * 16 if PP else tm + wg * (MI * 64) + warp * 16
                if PP:
                    T.ptx.bar.sync(T.Cast("uint32", wg + 2), T.uint32(256))
                if OVERLAP:
                    overlapped_loop()
                elif PROMOTE:
                    promoted_loop()
                else:
                    main_loop()
                if PP:
                    T.ptx.bar.arrive(T.Cast("uint32", 3 - wg), T.uint32(256))
                    skip_tile()
                store_tile()
                tile = tile + (NC * clusters if PP else clusters)
                seek()
            if TMA_STORE:
                if lane == 0:
                    T.ptx.cp.async_.bulk.wait_group.read(0)
        if CS > 1:
            T.cuda.cluster_sync()
    # fmt: on
    return kernel
