"""The attention backward's main kernel for Hopper: one block a key tile, dK and dV in registers, dQ summed in memory.

With S = scale Q K^T, P = exp(S - LSE), dP = dO V^T and delta = rowsum(dO . O): dV = P^T dO, dS = P . (dP - delta),
dK = scale dS^T Q, dQ = scale dS K (FlashAttention-2, arXiv:2307.08691, algorithm 2). S and dP are computed transposed, so
that P^T and dS^T are wgmma's register operand for dV and dK; only dQ needs dS in shared memory.
"""

import math

from tvm.script import tirx as T

from search_space.hopper.backward_tiles import BackwardTile
from search_space.lowering import hopper_ptx as ptx

_ROW = 128  # bytes of a row of a swizzled TMA box
_CHUNK = _ROW // 2  # its columns
_UNIT = 16  # bytes: unit of descriptor offsets
_LOG2E = math.log2(math.e)
_EX2 = "ex2.approx.ftz.f32"
_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_DUMMY_MAP = [*[64] * 4, *[128] * 3, *[8] * 4, *[1] * 4, 0, 3, 3, 0]


def _add_sums(n):
    """(name, source): adds a thread's `n` accumulators to its places in memory, 16 bytes at a time (PTX ISA 8.1, red)."""
    name = f"tw_add_sums_{n}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* a, float* sums) {{\n"
        "#pragma unroll\n"
        f"  for (int i = 0; i < {n}; i += 4)\n"
        '    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"\n'
        '                 :: "l"(sums + i * 128), "f"(a[i]), "f"(a[i + 1]), "f"(a[i + 2]), "f"(a[i + 3]) : "memory");\n'
        "}\n"
    )


def _await_turn():
    """(name, source): waits until `turn` contributions have been added to a tile of dQ."""
    name = "tw_await_turn"
    return name, (
        f"__device__ __forceinline__ void {name}(int* turns, int turn) {{\n"
        "  int seen;\n"
        '  do { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(turns) : "memory"); }'
        " while (seen < turn);\n"
        "}\n"
    )


def _end_turn():
    """(name, source): counts a contribution; every thread's additions were fenced before."""
    name = "tw_end_turn"
    return name, (
        f"__device__ __forceinline__ void {name}(int* turns) {{\n"
        '  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(turns) : "memory");\n'
        "}\n"
    )


def _fence():
    name = "tw_fence_device"
    return name, f"__device__ __forceinline__ void {name}() {{ __threadfence(); }}\n"


def backward_kernel(c: BackwardTile):
    """PrimFunc `main`(q, k, v, g = dO, lse2, delta, sums of dQ, turns, dk, dv, scalars); see BackwardTile.launch."""
    D, BQ, BKV, NC = c.head_dim, c.block_q, c.block_kv, c.consumers
    QS, GS, DB = c.q_stages, c.do_stages, c.ds_buffers
    CHUNKS = D // _CHUNK
    Q_EL, KV_EL, DS_EL = BQ * D, BKV * D, BKV * BQ
    NS, NA, NQ, NP = BQ // 2, D // 2, c.dq_columns // 2, BQ // 4
    WIDTH, SHARES = c.dq_columns, c.consumers // c.dq_rows
    # Between two warpgroups' columns of K: whole slabs of 64, or half of one.
    SHARE_STEP = WIDTH // _CHUNK * (BKV * _ROW // _UNIT) if WIDTH >= _CHUNK else WIDTH * 2 // _UNIT
    PREG, CREG = c.registers
    CAUSAL, DET = c.causal, c.deterministic
    SCALE = c.scale * _LOG2E
    dt, NEG = c.dtype, float("-inf")
    p = ptx.WGMMA_TYPE[dt]
    SCORES = f"wgmma.mma_async.sync.aligned.m64n{BQ}k16.f32.{p}.{p}"
    GRADS = f"wgmma.mma_async.sync.aligned.m64n{D}k16.f32.{p}.{p}"
    DQ = f"wgmma.mma_async.sync.aligned.m64n{WIDTH}k16.f32.{p}.{p}"
    PACK = f"cvt.rn.{p}x2.f32"
    LOAD, STORE = ptx.tma_load(4, False), ptx.tma_store(4)
    HI_K = ptx.descriptor_high(1, 8 * _ROW // _UNIT)  # K-major
    HI_KV = ptx.descriptor_high(BKV * _ROW // _UNIT, 8 * _ROW // _UNIT)  # MN-major, slabs of block_kv rows
    HI_Q = ptx.descriptor_high(BQ * _ROW // _UNIT, 8 * _ROW // _UNIT)  # MN-major, slabs of block_q rows
    fence_s, fence_a, fence_q = (ptx.fence_accumulators(n) for n in (NS, NA, NQ))
    add, wait_turn, end_turn, fence = _add_sums(NQ), _await_turn(), _end_turn(), _fence()

    # Plain Python: these run while the script is parsed, so their loops are unrolled.
    def some(buffer, n, first=0):
        return [buffer[first + i] for i in range(n)]

    def multiply_scores(acc, da, db):
        """acc[keys, queries] = A[keys, d] B[queries, d]^T, both K-major."""
        for kk in range(D // 16):
            inside, chunk = kk % 4 * 2, kk // 4
            a = da + T.uint64(chunk * (BKV * _ROW // _UNIT) + inside)
            b = db + T.uint64(chunk * (BQ * _ROW // _UNIT) + inside)
            T.evaluate(T.ptx[SCORES](*some(acc, NS), a, b, T.bool(kk > 0), 1, 1, 0, 0))

    def multiply_grads(acc, pairs, db):
        """acc[keys, d] += pairs[keys, queries] (registers) B[queries, d], B MN-major."""
        for kk in range(BQ // 16):
            b = db + T.uint64(kk * 16 * _ROW // _UNIT)
            T.evaluate(T.ptx[GRADS](*some(acc, NA), *some(pairs, 4, 4 * kk), b, T.bool(True), 1, 1, 1))

    def multiply_dq(acc, da, db):
        """acc[queries, columns] = A[keys, queries]^T B[keys, columns], both MN-major."""
        for kk in range(BKV // 16):
            step = T.uint64(kk * 16 * _ROW // _UNIT)
            T.evaluate(T.ptx[DQ](*some(acc, NQ), da + step, db + step, T.bool(kk > 0), 1, 1, 1, 1))

    def call(helper, *args, returns="void"):
        return T.cuda.func_call(helper[0], *args, source_code=helper[1], return_type=returns)

    # fmt: off
    @T.prim_func
    def main(q_ptr: T.handle, k_ptr: T.handle, v_ptr: T.handle, g_ptr: T.handle, lse2_ptr: T.handle,
             delta_ptr: T.handle, sums_ptr: T.handle, turns_ptr: T.handle, dk_ptr: T.handle, dv_ptr: T.handle,
             batch: T.int32, seq_q: T.int32, seq_kv: T.int32, heads_q: T.int32, heads_kv: T.int32, q_tiles: T.int32,
             padded: T.int32, kv_tiles: T.int32, kv_heads: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": "main"})
        q = T.match_buffer(q_ptr, (batch, seq_q, heads_q, D), dtype=dt, align=16)
        k = T.match_buffer(k_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        v = T.match_buffer(v_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        g = T.match_buffer(g_ptr, (batch, seq_q, heads_q, D), dtype=dt, align=16)
        dk = T.match_buffer(dk_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        dv = T.match_buffer(dv_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        lse2 = T.match_buffer(lse2_ptr, (batch * heads_q * q_tiles * BQ,), dtype="float32", align=16)
        delta = T.match_buffer(delta_ptr, (batch * heads_q * q_tiles * BQ,), dtype="float32", align=16)
        sums = T.match_buffer(sums_ptr, (batch * heads_q * q_tiles * BQ * D,), dtype="float32", align=16)
        turns = T.match_buffer(turns_ptr, (batch * heads_q * q_tiles,), dtype="int32", align=4)
        q_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", q_map, dt, 4, q.data, *_DUMMY_MAP)
        k_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", k_map, dt, 4, k.data, *_DUMMY_MAP)
        v_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", v_map, dt, 4, v.data, *_DUMMY_MAP)
        g_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", g_map, dt, 4, g.data, *_DUMMY_MAP)
        dk_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", dk_map, dt, 4, dk.data, *_DUMMY_MAP)
        dv_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", dv_map, dt, 4, dv.data, *_DUMMY_MAP)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        bx = T.cta_id([grid])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        Ks = pool.alloc((KV_EL,), dt, align=1024)
        Vs = pool.alloc((KV_EL,), dt, align=1024)
        Qs = pool.alloc((QS * Q_EL,), dt, align=1024)
        Gs = pool.alloc((GS * Q_EL,), dt, align=1024)
        Ds = pool.alloc((DB * DS_EL,), dt, align=1024)
        Ls = pool.alloc((QS * BQ,), "float32", align=128)
        Es = pool.alloc((GS * BQ,), "float32", align=128)
        kv_full = pool.alloc((1,), "uint64", align=8)
        q_full = pool.alloc((QS,), "uint64", align=8)
        q_empty = pool.alloc((QS,), "uint64", align=8)
        g_full = pool.alloc((GS,), "uint64", align=8)
        g_empty = pool.alloc((GS,), "uint64", align=8)
        pool.commit()

        if (wg == 0) & (warp == 0):
            if lane == 0:
                T.ptx.mbarrier.init.shared.b64(kv_full.ptr_to([0]), T.uint32(1))
                T.ptx.prefetch.tensormap(T.address_of(q_map))
                T.ptx.prefetch.tensormap(T.address_of(k_map))
                T.ptx.prefetch.tensormap(T.address_of(v_map))
                T.ptx.prefetch.tensormap(T.address_of(g_map))
            if lane < QS:
                T.ptx.mbarrier.init.shared.b64(q_full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(q_empty.ptr_to([lane]), T.uint32(NC * 4))
            if lane < GS:
                T.ptx.mbarrier.init.shared.b64(g_full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(g_empty.ptr_to([lane]), T.uint32(NC * 4))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        turn: T.int32                   # which key tile of its head
        bh: T.int32
        tb: T.int32
        hk: T.int32
        n0: T.int32                     # first key
        shift: T.int32                  # query i sees keys up to i + shift
        first: T.int32                  # query tile of every head that the walk begins with
        count: T.int32                  # query tiles of a head
        share: T.int32                  # query heads of this key head
        qs: T.int32
        qph: T.int32
        gs: T.int32
        gph: T.int32
        # Under a causal mask the first key tiles are seen by the most queries: they start first, and a tile of dQ takes
        # its contributions in that order where the order matters.
        if c.heads_first:
            turn = T.truncdiv(bx, kv_heads)
            bh = bx - turn * kv_heads
        else:
            bh = T.truncdiv(bx, kv_tiles)
            turn = bx - bh * kv_tiles
        tb = T.truncdiv(bh, heads_kv)
        hk = bh - tb * heads_kv
        n0 = turn * BKV
        shift = seq_kv - seq_q
        share = T.truncdiv(heads_q, heads_kv)
        if CAUSAL:
            first = T.truncdiv(T.max(n0 - shift, 0), BQ)
        else:
            first = 0
        count = q_tiles - first
        qs = 0
        qph = 0
        gs = 0
        gph = 0

        @T.inline
        def advance_q():
            qs = qs + 1
            if qs == QS:
                qs = 0
                qph = qph ^ 1

        @T.inline
        def advance_g():
            gs = gs + 1
            if gs == GS:
                gs = 0
                gph = gph ^ 1

        if wg == NC:
            # ------------------------------------------------ producer
            if PREG > 0:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(PREG)
            if (warp == 0) & (lane == 0):
                th: T.int32
                at: T.int32
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(kv_full.ptr_to([0]), T.uint32(2 * c.kv_bytes))
                for ch in T.unroll(CHUNKS):
                    T.ptx[LOAD](Ks.ptr_to([ch * (BKV * _CHUNK)]), T.address_of(k_map), ch * _CHUNK, hk, n0, tb,
                                kv_full.ptr_to([0]))
                for ch in T.unroll(CHUNKS):
                    T.ptx[LOAD](Vs.ptr_to([ch * (BKV * _CHUNK)]), T.address_of(v_map), ch * _CHUNK, hk, n0, tb,
                                kv_full.ptr_to([0]))
                for head in T.serial(share):
                    th = hk * share + head
                    for it in T.serial(count):
                        at = (first + it) * BQ
                        T.cuda.mbarrier_wait(q_empty.ptr_to([qs]), qph ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(q_full.ptr_to([qs]),
                                                                   T.uint32(c.q_bytes + c.row_bytes))
                        for ch in T.unroll(CHUNKS):
                            T.ptx[LOAD](Qs.ptr_to([qs * Q_EL + ch * (BQ * _CHUNK)]), T.address_of(q_map),
                                        ch * _CHUNK, th, at, tb, q_full.ptr_to([qs]))
                        T.ptx[_BULK](Ls.ptr_to([qs * BQ]), lse2.ptr_to([(tb * heads_q + th) * padded + at]),
                                     T.uint32(c.row_bytes), q_full.ptr_to([qs]))
                        advance_q()
                        T.cuda.mbarrier_wait(g_empty.ptr_to([gs]), gph ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(g_full.ptr_to([gs]),
                                                                   T.uint32(c.q_bytes + c.row_bytes))
                        for ch in T.unroll(CHUNKS):
                            T.ptx[LOAD](Gs.ptr_to([gs * Q_EL + ch * (BQ * _CHUNK)]), T.address_of(g_map),
                                        ch * _CHUNK, th, at, tb, g_full.ptr_to([gs]))
                        T.ptx[_BULK](Es.ptr_to([gs * BQ]), delta.ptr_to([(tb * heads_q + th) * padded + at]),
                                     T.uint32(c.row_bytes), g_full.ptr_to([gs]))
                        advance_g()
        else:
            # ------------------------------------------------ consumers
            if CREG > 0:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(CREG)
            S = T.alloc_local((NS,), "float32")       # scores [keys, queries], then P; then this share of dQ
            X = T.alloc_local((NS,), "float32")       # dP, then dS
            if NQ != NS:                              # wgmma wants blocks of registers of one size
                Q = T.alloc_local((NQ,), "float32")
            V = T.alloc_local((NA,), "float32")       # dV [keys, d]
            K = T.alloc_local((NA,), "float32")       # dK [keys, d]
            P = T.alloc_local((NP,), "uint32")        # P as 16-bit pairs: the A operand of dV
            E = T.alloc_local((NP,), "uint32")        # dS as 16-bit pairs: the A operand of dK
            low = T.alloc_local((2,), "int32")
            w = T.alloc_local((4,), "uint32")
            a = T.alloc_local((2,), "float32")        # row data of two neighbouring queries
            m0: T.int32
            key: T.int32
            buf: T.int32
            place: T.int32                            # of the query tile among all
            dk0: T.uint64
            dkt: T.uint64
            dv0: T.uint64
            dq0: T.uint64
            dqt: T.uint64
            dg0: T.uint64
            dgt: T.uint64
            ds0: T.uint64
            # K-major descriptors of this warpgroup's rows of K and V, and of Q and dO; MN-major ones (..t) for dQ, dK, dV.
            T.ptx.mov.b64(dk0, (T.cuda.cvta_generic_to_shared(Ks.ptr_to([0])) >> T.uint32(4))
                          + T.Cast("uint32", wg * (64 * _ROW // _UNIT)) + T.uint32(HI_K & 0xFFFFFFFF),
                          T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dv0, (T.cuda.cvta_generic_to_shared(Vs.ptr_to([0])) >> T.uint32(4))
                          + T.Cast("uint32", wg * (64 * _ROW // _UNIT)) + T.uint32(HI_K & 0xFFFFFFFF),
                          T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dq0, (T.cuda.cvta_generic_to_shared(Qs.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_K & 0xFFFFFFFF), T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dg0, (T.cuda.cvta_generic_to_shared(Gs.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_K & 0xFFFFFFFF), T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dqt, (T.cuda.cvta_generic_to_shared(Qs.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_Q & 0xFFFFFFFF), T.uint32(HI_Q >> 32))
            T.ptx.mov.b64(dgt, (T.cuda.cvta_generic_to_shared(Gs.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_Q & 0xFFFFFFFF), T.uint32(HI_Q >> 32))
            T.ptx.mov.b64(dkt, (T.cuda.cvta_generic_to_shared(Ks.ptr_to([0])) >> T.uint32(4))
                          + T.Cast("uint32", wg % SHARES * SHARE_STEP)
                          + T.uint32(HI_KV & 0xFFFFFFFF), T.uint32(HI_KV >> 32))
            T.ptx.mov.b64(ds0, (T.cuda.cvta_generic_to_shared(Ds.ptr_to([0])) >> T.uint32(4))
                          + T.Cast("uint32", wg // SHARES * (BKV * _ROW // _UNIT))
                          + T.uint32(HI_KV & 0xFFFFFFFF), T.uint32(HI_KV >> 32))
            for i in T.unroll(NA):
                V[i] = T.float32(0)
                K[i] = T.float32(0)
            key = n0 + wg * 64 + warp * 16 + lane // 4
            buf = 0
            T.cuda.mbarrier_wait(kv_full.ptr_to([0]), 0)

            @T.inline
            def issue_scores():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_scores(S, dk0, dq0 + T.Cast("uint64", qs * (Q_EL // 8)))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_dp():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_scores(X, dv0, dg0 + T.Cast("uint64", gs * (Q_EL // 8)))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_dv():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_grads(V, P, dgt + T.Cast("uint64", gs * (Q_EL // 8)))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_dq():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_dq(S if NQ == NS else Q, ds0 + T.Cast("uint64", buf * (DS_EL // 8)), dkt)
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_dk():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_grads(K, E, dqt + T.Cast("uint64", qs * (Q_EL // 8)))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def mask():
                # The keys of a query end at its diagonal, those of all at seq_kv.
                if n0 + wg * 64 + 64 > T.min(seq_kv, m0 + shift + 1) if CAUSAL else n0 + wg * 64 + 64 > seq_kv:
                    for r in T.unroll(2):
                        if CAUSAL:
                            low[r] = T.Select(key + r * 8 < seq_kv, key + r * 8 - shift - m0 - lane % 4 * 2, 1 << 20)
                        else:
                            low[r] = T.Select(key + r * 8 < seq_kv, 0, 1 << 20)
                    for i in T.unroll(NS):
                        S[i] = T.Select(i // 4 * 8 + i % 2 >= low[i % 4 // 2], S[i], T.float32(NEG))

            @T.inline
            def probabilities():
                for j in T.unroll(NS // 4):
                    T.ptx["ld.shared.v2.f32"](a[0], a[1], Ls.ptr_to([qs * BQ + j * 8 + lane % 4 * 2]))
                    for i in T.unroll(4):
                        T.ptx[_EX2](S[4 * j + i], S[4 * j + i] * T.float32(SCALE) - a[i % 2])
                for i in T.unroll(NP):
                    T.ptx[PACK](P[i], S[2 * i + 1], S[2 * i])

            @T.inline
            def score_gradients():
                for j in T.unroll(NS // 4):
                    T.ptx["ld.shared.v2.f32"](a[0], a[1], Es.ptr_to([gs * BQ + j * 8 + lane % 4 * 2]))
                    for i in T.unroll(4):
                        X[4 * j + i] = S[4 * j + i] * (X[4 * j + i] - a[i % 2])
                for i in T.unroll(NP):
                    T.ptx[PACK](E[i], X[2 * i + 1], X[2 * i])

            @T.inline
            def share_gradients():
                # dS^T to shared memory: [slab of 64 queries][keys][64 queries], swizzled as TMA would.
                for part in T.unroll(BQ // 16):
                    slab = T.meta_var(buf * DS_EL + part // 4 * (BKV * _CHUNK) + (wg * 64 + warp * 16) * _CHUNK)
                    T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                        Ds.ptr_to([slab + lane % 16 * _CHUNK
                                   + T.bitwise_xor(part % 4 * 2 + lane // 16, lane % 8) * 8]),
                        *some(E, 4, 4 * part))
                T.ptx.fence.proxy.async_.shared__cta()
                T.ptx.bar.sync(T.uint32(1), T.uint32(128 * NC))

            @T.inline
            def add_dq():
                if DET:
                    if (warp == 0) & (lane == 0):
                        call(wait_turn, turns.ptr_to([place]), turn * NC)
                    T.ptx.bar.sync(T.Cast("uint32", wg + 2), T.uint32(128))
                call(add, S.data if NQ == NS else Q.data, sums.ptr_to([(place * NC + wg) * (64 * WIDTH) + (warp * 32 + lane) * 4]))
                if DET:
                    call(fence)
                    T.ptx.bar.sync(T.Cast("uint32", wg + 2), T.uint32(128))
                    if (warp == 0) & (lane == 0):
                        call(end_turn, turns.ptr_to([place]))

            @T.inline
            def store(acc, tile, gradient_map, factor):
                # Each warp stages its 16 rows where its rows of the operand were.
                for ch in T.unroll(CHUNKS):
                    at = T.meta_var(ch * (BKV * _CHUNK) + (wg * 64 + warp * 16) * _CHUNK)
                    for part in T.unroll(_CHUNK // 16):
                        a0 = T.meta_var(ch * (_CHUNK // 2) + part * 8)
                        for i in T.unroll(4):
                            T.ptx[PACK](w[i], acc[a0 + 2 * i + 1] * T.float32(factor), acc[a0 + 2 * i] * T.float32(factor))
                        T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                            tile.ptr_to([at + lane % 16 * _CHUNK + T.bitwise_xor(part * 2 + lane // 16, lane % 8) * 8]),
                            w[0], w[1], w[2], w[3])
                T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warp_sync()
                if lane == 0:
                    for ch in T.unroll(CHUNKS):
                        T.ptx[STORE](T.address_of(gradient_map), ch * _CHUNK, hk, n0 + wg * 64 + warp * 16, tb,
                                     tile.ptr_to([ch * (BKV * _CHUNK) + (wg * 64 + warp * 16) * _CHUNK]))
                    T.ptx.cp.async_.bulk.commit_group()

            for head in T.serial(share):
                for it in T.serial(count):
                    m0 = (first + it) * BQ
                    place = (tb * heads_q + hk * share + head) * q_tiles + first + it
                    T.cuda.mbarrier_wait(q_full.ptr_to([qs]), qph)
                    issue_scores()
                    T.cuda.mbarrier_wait(g_full.ptr_to([gs]), gph)
                    issue_dp()
                    T.ptx.wgmma.wait_group.sync.aligned(1)   # scores
                    call(fence_s, S.data)
                    mask()
                    probabilities()
                    T.ptx.wgmma.wait_group.sync.aligned(0)   # dP
                    call(fence_s, X.data)
                    issue_dv()
                    score_gradients()
                    share_gradients()
                    issue_dq()
                    issue_dk()
                    T.ptx.wgmma.wait_group.sync.aligned(1)   # dV and dQ
                    call(fence_q, S.data if NQ == NS else Q.data)
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(g_empty.ptr_to([gs]), T.uint32(1))
                    advance_g()
                    add_dq()
                    T.ptx.wgmma.wait_group.sync.aligned(0)   # dK
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(q_empty.ptr_to([qs]), T.uint32(1))
                    advance_q()
                    if DB == 1:
                        T.ptx.bar.sync(T.uint32(1), T.uint32(128 * NC))
                    else:
                        buf = buf ^ 1
            call(fence_a, V.data)
            call(fence_a, K.data)
            T.ptx.bar.sync(T.uint32(1), T.uint32(128 * NC))  # no warpgroup reads K any more
            store(V, Vs, dv_map, 1.0)
            store(K, Ks, dk_map, c.scale)
            if lane == 0:
                T.ptx.cp.async_.bulk.wait_group.read(0)
    # fmt: on
    return main
