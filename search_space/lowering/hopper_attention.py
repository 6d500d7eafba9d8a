"""The attention forward kernel for Hopper: TMA producer, K and V rings, wgmma with P in registers, online softmax.

One block computes block_q rows of one head at a time (FlashAttention-3, arXiv:2407.08608, section 3). Scores are kept
in units of log2 with the scale folded in, so that one fused multiply-add and one ex2 make a probability. Key tiles are
visited from last to first: those that need a mask (the end of the keys, the causal diagonal) come first.
"""

# ruff: noqa: E741  (O is the output, as everywhere in the papers)

import functools
import math
import operator

from tvm.script import tirx as T

from search_space.attention import UNLIMITED
from search_space.hopper.attention_tiles import AttentionTile
from search_space.lowering import hopper_ptx as ptx

_ROW = 128  # bytes of a row of a swizzled TMA box
_CHUNK = _ROW // 2  # its columns
_UNIT = 16  # bytes: unit of descriptor offsets
_LOG2E = math.log2(math.e)
_EX2 = "ex2.approx.ftz.f32"
_DUMMY_MAP = [*[64] * 4, *[128] * 3, *[8] * 4, *[1] * 4, 0, 3, 3, 0]


def _next_tile():
    """(name, source): the next tile number from a global counter, which the launch's last fetch sets back to 0.

    Every block fetches until it gets a number behind the end, so a launch makes exactly `tiles` fetches."""
    name = "tw_next_tile"
    return name, (
        f"__device__ __forceinline__ int {name}(int* counter, int grid, int tiles) {{\n"
        "  int old = atomicAdd(counter, 1);\n"
        "  if (old == tiles - 1) *reinterpret_cast<volatile int*>(counter) = 0;\n"
        "  return grid + old;\n"
        "}\n"
    )


def _pin():
    """(name, source): nothing before this that `a` and `b` depend on moves below the next wgmma wait.

    ptxas would otherwise move that wait above the softmax, which then no longer overlaps with P V: only a branch on
    the values holds it. They are sums and powers, never negative, so the branch is never taken."""
    name = "tw_pin"
    return name, (
        f"__device__ __forceinline__ void {name}(float a, float b) {{\n"
        '  if ((__float_as_int(a) | __float_as_int(b)) < 0) asm volatile("nanosleep.u32 0;" ::: "memory");\n'
        "}\n"
    )


def attention_kernel(c: AttentionTile):
    """PrimFunc `main`(q, k, v, o[, lse][, counter], scalars); see AttentionTile.launch for the scalars."""
    D, DV, BQ, BKV, ST, QB, NC = c.head_dim, c.head_dim_v, c.block_q, c.block_kv, c.stages, c.q_buffers, c.consumers
    KCH, VCH = c.k_chunks, c.v_chunks
    Q_EL, K_EL, V_EL = c.q_bytes // 2, c.k_bytes // 2, c.v_bytes // 2
    NS, NO, NP = BKV // 2, DV // 2, BKV // 4
    PREG, CREG = c.registers
    LEFT, RIGHT, CAP, PP = c.window_left, c.right, c.softcap, c.pingpong
    WINDOW, BOUNDED = LEFT != UNLIMITED, RIGHT != UNLIMITED  # keys end before the last one, or begin after the first
    SKIP, HALF = BOUNDED and c.diagonal != "mask", BOUNDED and c.diagonal == "half"
    DYNAMIC, DIRECT, LAZY = c.dynamic, c.epilogue == "direct", c.lazy > 0
    BEFORE, UNDER, AFTER = (c.rescale == kind for kind in ("before", "under", "after"))
    SCALE = 1.0 if CAP else c.scale * _LOG2E
    dt, NEG = c.dtype, float("-inf")
    p = ptx.WGMMA_TYPE[dt]
    QK = f"wgmma.mma_async.sync.aligned.m64n{BKV}k16.f32.{p}.{p}"
    HALF_QK = f"wgmma.mma_async.sync.aligned.m64n{BKV // 2}k16.f32.{p}.{p}"
    PV = f"wgmma.mma_async.sync.aligned.m64n{DV}k16.f32.{p}.{p}"
    PACK = f"cvt.rn.{p}x2.f32"
    LOAD, STORE = ptx.tma_load(4, False), ptx.tma_store(4)
    HI_K = ptx.descriptor_high(1, 8 * _ROW // _UNIT)
    HI_V = ptx.descriptor_high(BKV * _ROW // _UNIT, 8 * _ROW // _UNIT)
    fence_s, fence_o = ptx.fence_accumulators(NS), ptx.fence_accumulators(NO)
    pin, fetch = _pin(), _next_tile()

    # Plain Python: these run while the script is parsed, so their loops are unrolled.
    def some(buffer, n, first=0):
        return [buffer[first + i] for i in range(n)]

    def multiply_qk(S, dq, dk, mma=QK, width=NS):
        for kk in range(-(-D // 16)):
            inside, chunk = kk % 4 * 2, kk // 4
            a = dq + T.uint64(chunk * (BQ * _ROW // _UNIT) + inside)
            b = dk + T.uint64(chunk * (BKV * _ROW // _UNIT) + inside)
            T.evaluate(T.ptx[mma](*some(S, width), a, b, T.bool(kk > 0), 1, 1, 0, 0))

    def multiply_pv(O, P, dv, steps):
        for kk in steps:
            b = dv + T.uint64(kk * 16 * _ROW // _UNIT)
            T.evaluate(T.ptx[PV](*some(O, NO), *some(P, 4, 4 * kk), b, T.bool(True), 1, 1, 1))

    def row_of(S, r):
        """What a thread holds of its row r (0, or 1: eight rows below)."""
        return [S[4 * i + 2 * r + e] for i in range(NS // 4) for e in range(2)]

    def call(helper, *args, returns="void"):
        return T.cuda.func_call(helper[0], *args, source_code=helper[1], return_type=returns)

    # fmt: off
    @T.prim_func
    def main(q_ptr: T.handle, k_ptr: T.handle, v_ptr: T.handle, o_ptr: T.handle, lse_ptr: T.handle,
             counter_ptr: T.handle, batch: T.int32, heads: T.int32, seq_q: T.int32, seq_kv: T.int32, heads_q: T.int32,
             heads_kv: T.int32, tiles: T.int32, grid: T.int32, group: T.int32, o_head: T.int32, o_row: T.int32,
             o_batch: T.int32):
        T.func_attr({"global_symbol": "main"})
        q = T.match_buffer(q_ptr, (batch, seq_q, heads_q, D), dtype=dt, align=16)
        k = T.match_buffer(k_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        v = T.match_buffer(v_ptr, (batch, seq_kv, heads_kv, DV), dtype=dt, align=16)
        o = T.match_buffer(o_ptr, (batch, o_batch), dtype=dt, align=16)
        lse = T.match_buffer(lse_ptr, (batch, heads_q, seq_q), dtype="float32", align=4)
        counter = T.match_buffer(counter_ptr, (1,), dtype="int32", align=4)
        q_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", q_map, dt, 4, q.data, *_DUMMY_MAP)
        k_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", k_map, dt, 4, k.data, *_DUMMY_MAP)
        v_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", v_map, dt, 4, v.data, *_DUMMY_MAP)
        if not DIRECT:
            o_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
            T.call_packed("runtime.cuTensorMapEncodeTiled", o_map, dt, 4, o.data, *_DUMMY_MAP)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        bx = T.cta_id([grid])
        wg = T.warpgroup_id([NC + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        Qs = pool.alloc((QB * Q_EL,), dt, align=1024)
        Ks = pool.alloc((ST * K_EL,), dt, align=1024)
        Vs = pool.alloc((ST * V_EL,), dt, align=1024)
        q_full = pool.alloc((QB,), "uint64", align=8)
        q_empty = pool.alloc((QB,), "uint64", align=8)
        k_full = pool.alloc((ST,), "uint64", align=8)
        k_empty = pool.alloc((ST,), "uint64", align=8)
        v_full = pool.alloc((ST,), "uint64", align=8)
        v_empty = pool.alloc((ST,), "uint64", align=8)
        places = pool.alloc((QB * 4,), "int32", align=16)    # by Q buffer: first row (-1 ends), batch, head
        pool.commit()

        if (wg == 0) & (warp == 0):
            if lane < QB:
                T.ptx.mbarrier.init.shared.b64(q_full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(q_empty.ptr_to([lane]), T.uint32(NC * 4))
            if lane < ST:
                T.ptx.mbarrier.init.shared.b64(k_full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(v_full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(k_empty.ptr_to([lane]), T.uint32(NC * 4))
                T.ptx.mbarrier.init.shared.b64(v_empty.ptr_to([lane]), T.uint32(NC * 4))
            T.ptx.fence.mbarrier_init.release.cluster()
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(q_map))
                T.ptx.prefetch.tensormap(T.address_of(k_map))
                T.ptx.prefetch.tensormap(T.address_of(v_map))
        T.cuda.cta_sync()

        tile: T.int32
        step: T.int32
        q_tiles: T.int32                # of one head
        tb: T.int32
        th: T.int32
        m0: T.int32                     # first query row of the tile
        shift: T.int32                  # query i sees keys up to i + shift
        n: T.int32                      # the query tile's key tiles are [low, n): one at least, if only to mask it
        low: T.int32
        qs: T.int32
        qph: T.int32
        ks: T.int32
        kph: T.int32
        vs: T.int32
        vph: T.int32
        # Without a counter tiles are dealt in rounds of `grid`, back and forth, so that no block gets the longest tile
        # of every round.
        tile = bx
        step = 2 * (grid - bx) - 1
        q_tiles = (seq_q + BQ - 1) // BQ
        shift = seq_kv - seq_q + (RIGHT if BOUNDED else 0)
        low = 0
        qs = 0
        qph = 0
        ks = 0
        kph = 0
        vs = 0
        vph = 0

        @T.inline
        def locate():
            # Groups of `group` heads; inside one the heads are fastest and query tiles go from last to first: the
            # longest causal tiles first, and heads that share K and V, or fit L2 together, side by side.
            first: T.int32
            width: T.int32
            inside: T.int32
            bh: T.int32
            first = T.truncdiv(tile, q_tiles * group) * group
            inside = tile - first * q_tiles
            width = T.min(heads - first, group)
            m0 = T.truncdiv(inside, width)
            bh = first + inside - m0 * width
            m0 = (q_tiles - 1 - m0) * BQ
            tb = T.truncdiv(bh, heads_q)
            th = bh - tb * heads_q

        @T.inline
        def count_key_tiles():
            if BOUNDED:
                n = (T.max(T.min(seq_kv, T.min(m0 + BQ, seq_q) + shift), 1) + BKV - 1) // BKV
            else:
                n = (seq_kv + BKV - 1) // BKV
            if WINDOW:
                low = T.max(0, m0 + seq_kv - seq_q - LEFT) // BKV

        @T.inline
        def deal():
            tile = tile + step
            step = 2 * grid - step

        @T.inline
        def advance_q():
            qs = qs + 1
            if qs == QB:
                qs = 0
                qph = qph ^ 1

        @T.inline
        def advance_k():
            ks = ks + 1
            if ks == ST:
                ks = 0
                kph = kph ^ 1

        @T.inline
        def advance_v():
            vs = vs + 1
            if vs == ST:
                vs = 0
                vph = vph ^ 1

        if wg == NC:
            # ------------------------------------------------ producer
            if PREG > 0:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(PREG)
            if (warp == 0) & (lane == 0):
                hk: T.int32
                following: T.int32

                @T.inline
                def load_k(j):
                    T.cuda.mbarrier_wait(k_empty.ptr_to([ks]), kph ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(k_full.ptr_to([ks]), T.uint32(c.k_bytes))
                    for ch in T.unroll(KCH):
                        T.ptx[LOAD](Ks.ptr_to([ks * K_EL + ch * (BKV * _CHUNK)]), T.address_of(k_map),
                                    ch * _CHUNK, hk, j * BKV, tb, k_full.ptr_to([ks]))
                    advance_k()

                @T.inline
                def load_v(j):
                    T.cuda.mbarrier_wait(v_empty.ptr_to([vs]), vph ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(v_full.ptr_to([vs]), T.uint32(c.v_bytes))
                    for ch in T.unroll(VCH):
                        T.ptx[LOAD](Vs.ptr_to([vs * V_EL + ch * (BKV * _CHUNK)]), T.address_of(v_map),
                                    ch * _CHUNK, hk, j * BKV, tb, v_full.ptr_to([vs]))
                    advance_v()

                @T.inline
                def publish():
                    # Consumers are told where the tile lies, so that none of them divides.
                    T.cuda.mbarrier_wait(q_empty.ptr_to([qs]), qph ^ 1)
                    places[qs * 4] = m0
                    places[qs * 4 + 1] = tb
                    places[qs * 4 + 2] = th

                while tile < tiles:
                    locate()
                    count_key_tiles()
                    hk = T.truncdiv(th, T.truncdiv(heads_q, heads_kv))
                    # In the order of need: K of a tile before V of the one before; Q behind the first K, because its
                    # buffer is freed later.
                    load_k(n - 1)
                    publish()
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(q_full.ptr_to([qs]), T.uint32(c.q_bytes))
                    for ch in T.unroll(KCH):
                        T.ptx[LOAD](Qs.ptr_to([qs * Q_EL + ch * (BQ * _CHUNK)]), T.address_of(q_map),
                                    ch * _CHUNK, th, m0, tb, q_full.ptr_to([qs]))
                    advance_q()
                    if DYNAMIC:
                        following = call(fetch, counter.ptr_to([0]), grid, tiles, returns="int32")
                    for it in T.serial(n - low - 1):
                        load_k(n - 2 - it)
                        load_v(n - 1 - it)
                    load_v(low)
                    if DYNAMIC:
                        tile = following
                    else:
                        deal()
                m0 = -1
                publish()
                T.ptx.mbarrier.arrive.shared.b64(q_full.ptr_to([qs]), T.uint32(1))
        else:
            # ------------------------------------------------ consumers
            if CREG > 0:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(CREG)
            S = T.alloc_local((NS,), "float32")       # scores, then their powers of two
            O = T.alloc_local((NO,), "float32")
            P = T.alloc_local((NP,), "uint32")        # the powers as 16-bit pairs: the A operand of P V
            # A thread holds two rows, 8 apart; four neighbouring lanes share a row.
            top = T.alloc_local((2,), "float32")      # running maximum, log2 units
            total = T.alloc_local((2,), "float32")    # running sum, this thread's columns only
            peak = T.alloc_local((2,), "float32")
            base = T.alloc_local((2,), "float32")
            shrink = T.alloc_local((2,), "float32")   # what the output so far is to be multiplied by
            limit = T.alloc_local((2,), "int32")
            left = T.alloc_local((2,), "int32")
            floor = T.alloc_local((2,), "int32")
            under = T.alloc_local((2,), "int32")
            w = T.alloc_local((4,), "uint32")
            grown: T.int32
            row: T.int32
            plain: T.int32                            # keys below this are seen by every row of the warpgroup
            plain_low: T.int32                        # and so are keys from here on, as far as a window goes
            count: T.int32                            # key tiles that this warpgroup multiplies: [low, count)
            stored: T.int32
            half: T.int32
            dq0: T.uint64
            dk0: T.uint64
            dv0: T.uint64
            T.ptx.mov.b64(dq0, (T.cuda.cvta_generic_to_shared(Qs.ptr_to([0])) >> T.uint32(4))
                          + T.Cast("uint32", wg * (64 * _ROW // _UNIT)) + T.uint32(HI_K & 0xFFFFFFFF),
                          T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dk0, (T.cuda.cvta_generic_to_shared(Ks.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_K & 0xFFFFFFFF), T.uint32(HI_K >> 32))
            T.ptx.mov.b64(dv0, (T.cuda.cvta_generic_to_shared(Vs.ptr_to([0])) >> T.uint32(4))
                          + T.uint32(HI_V & 0xFFFFFFFF), T.uint32(HI_V >> 32))

            @T.inline
            def issue_half_qk():
                # The upper half of the keys is above the diagonal of all of this warpgroup's rows.
                T.ptx.wgmma.fence.sync.aligned()
                multiply_qk(S, dq0 + T.Cast("uint64", qs * (Q_EL // 8)), dk0 + T.Cast("uint64", ks * (K_EL // 8)),
                            HALF_QK, NS // 2)
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_qk():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_qk(S, dq0 + T.Cast("uint64", qs * (Q_EL // 8)), dk0 + T.Cast("uint64", ks * (K_EL // 8)))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_pv_of(it):
                # Of a first tile that was half computed, only the half that is not zero.
                T.ptx.wgmma.fence.sync.aligned()
                multiply_pv(O, P, dv0 + T.Cast("uint64", vs * (V_EL // 8)), range(BKV // 32))
                if (it > 0) | (half == 0):
                    multiply_pv(O, P, dv0 + T.Cast("uint64", vs * (V_EL // 8)), range(BKV // 32, BKV // 16))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def issue_pv():
                T.ptx.wgmma.fence.sync.aligned()
                multiply_pv(O, P, dv0 + T.Cast("uint64", vs * (V_EL // 8)), range(BKV // 16))
                T.ptx.wgmma.commit_group.sync.aligned()

            @T.inline
            def wait_qk(pending):
                T.ptx.wgmma.wait_group.sync.aligned(pending)
                call(fence_s, S.data)
                release_k()

            @T.inline
            def wait_pv():
                T.ptx.wgmma.wait_group.sync.aligned(0)
                call(fence_o, O.data)
                release_v()

            @T.inline
            def release_k():
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared.b64(k_empty.ptr_to([ks]), T.uint32(1))
                advance_k()

            @T.inline
            def release_v():
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared.b64(v_empty.ptr_to([vs]), T.uint32(1))
                advance_v()

            @T.inline
            def soften():
                # cap * tanh(s / cap) in units of log2, by powers: tanh.approx would be off by 2^-11 of the cap.
                for i in T.unroll(NS):
                    T.ptx[_EX2](S[i], S[i] * T.float32(2 * c.scale * _LOG2E / (CAP or 1.0)))
                    T.ptx["rcp.approx.ftz.f32"](S[i], S[i] + T.float32(1))
                    S[i] = T.float32(CAP * _LOG2E) - T.float32(2 * CAP * _LOG2E) * S[i]

            @T.inline
            def find_peaks(j):
                # New maxima and the factor `shrink` for what was summed under the old ones.
                if CAP > 0:
                    soften()
                if WINDOW:
                    if ((j + 1) * BKV > plain) | (j * BKV < plain_low):
                        for r in T.unroll(2):
                            left[r] = limit[r] - j * BKV
                            under[r] = floor[r] - j * BKV
                        for i in T.unroll(NS):
                            key = T.meta_var(i // 4 * 8 + i % 2)
                            S[i] = T.Select((key < left[i % 4 // 2]) & (key >= under[i % 4 // 2]), S[i], T.float32(NEG))
                elif (j + 1) * BKV > plain:
                    for r in T.unroll(2):
                        left[r] = limit[r] - j * BKV
                    for i in T.unroll(NS):
                        S[i] = T.Select(i // 4 * 8 + i % 2 < left[i % 4 // 2], S[i], T.float32(NEG))
                peak[0] = functools.reduce(T.max, row_of(S, 0))
                peak[1] = functools.reduce(T.max, row_of(S, 1))
                for r in T.unroll(2):
                    peak[r] = T.cuda.warp_max(peak[r], 4) * T.float32(SCALE)
                    if LAZY:
                        # A stale maximum serves as well while its powers cannot overflow.
                        peak[r] = T.Select(peak[r] > top[r] + T.float32(c.lazy), peak[r], top[r])
                    else:
                        peak[r] = T.max(peak[r], top[r])
                    # A row that has seen no key keeps -inf; 0 is subtracted there, since -inf - -inf is NaN.
                    base[r] = T.Select(peak[r] == T.float32(NEG), T.float32(0), peak[r])
                    T.ptx[_EX2](shrink[r], top[r] - base[r])
                if LAZY:
                    grown = T.cuda.any_sync(T.uint32(0xFFFFFFFF),
                                            T.Cast("int32", (peak[0] > top[0]) | (peak[1] > top[1])))
                for r in T.unroll(2):
                    if LAZY:
                        shrink[r] = T.Select(peak[r] > top[r], shrink[r], T.float32(1))
                    top[r] = peak[r]
                    total[r] = total[r] * shrink[r]

            @T.inline
            def exponentiate():
                # Fused: right as long as half an ulp of the largest score is a power that P can hold (scores of 2^27).
                # Rounded before the subtraction, head_dim 64 and 128 would be 6 to 10 % slower.
                for i in T.unroll(NS):
                    T.ptx[_EX2](S[i], S[i] * T.float32(SCALE) - base[i % 4 // 2])
                total[0] = total[0] + functools.reduce(operator.add, row_of(S, 0))
                total[1] = total[1] + functools.reduce(operator.add, row_of(S, 1))

            @T.inline
            def rescale():
                if LAZY:
                    if grown != 0:
                        for i in T.unroll(NO):
                            O[i] = O[i] * shrink[i % 4 // 2]
                else:
                    for i in T.unroll(NO):
                        O[i] = O[i] * shrink[i % 4 // 2]

            @T.inline
            def pack():
                for i in T.unroll(NP):
                    T.ptx[PACK](P[i], S[2 * i + 1], S[2 * i])

            @T.inline
            def free_q():
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared.b64(q_empty.ptr_to([qs]), T.uint32(1))

            @T.inline
            def free_stored(slot):
                # Once the bulk store has read the output that was staged in this Q buffer.
                if lane == 0:
                    if (QB == 1) | (stored != 0):
                        T.ptx.cp.async_.bulk.wait_group.read(0)
                        T.ptx.mbarrier.arrive.shared.b64(q_empty.ptr_to([slot]), T.uint32(1))

            @T.inline
            def my_turn():
                if PP:
                    T.ptx.bar.sync(T.Cast("uint32", wg + 1), T.uint32(256))

            @T.inline
            def next_turn():
                if PP:
                    T.ptx.bar.arrive(T.Cast("uint32", (wg + 1) % NC + 1), T.uint32(256))

            @T.inline
            def take_place():
                T.cuda.mbarrier_wait(q_full.ptr_to([qs]), qph)
                m0 = places[qs * 4]
                tb = places[qs * 4 + 1]
                th = places[qs * 4 + 2]

            @T.inline
            def begin():
                # Row limits, empty state, and tiles above the diagonal of all of this warpgroup's rows passed over.
                row = m0 + wg * 64 + warp * 16 + lane // 4
                plain = T.min(seq_kv, m0 + wg * 64 + shift + 1) if BOUNDED else seq_kv
                if WINDOW:
                    plain_low = m0 + wg * 64 + 63 + seq_kv - seq_q - LEFT
                for r in T.unroll(2):
                    if WINDOW:
                        floor[r] = row + r * 8 + seq_kv - seq_q - LEFT - lane % 4 * 2
                    if BOUNDED:
                        limit[r] = T.min(seq_kv, row + r * 8 + shift + 1) - lane % 4 * 2
                    else:
                        limit[r] = seq_kv - lane % 4 * 2
                    top[r] = T.float32(NEG)
                    total[r] = T.float32(0)
                for i in T.unroll(NO):
                    O[i] = T.float32(0)
                count = n
                if SKIP:
                    seen: T.int32                     # keys up to the last row's diagonal
                    seen = T.max(m0 + wg * 64 + 64 + shift, 1)
                    count = T.min(n, (seen + BKV - 1) // BKV)
                    if HALF:
                        half = T.Cast("int32", T.min(seen, seq_kv) <= count * BKV - BKV // 2)
                    for _it in T.serial(n - count):
                        T.cuda.mbarrier_wait(k_full.ptr_to([ks]), kph)
                        release_k()
                        T.cuda.mbarrier_wait(v_full.ptr_to([vs]), vph)
                        release_v()
                        my_turn()
                        next_turn()

            @T.inline
            def store_lse(r):
                if (lane % 4 == 0) & (row + r * 8 < seq_q):
                    T.ptx["lg2.approx.ftz.f32"](peak[r], total[r])
                    lse[tb, th, row + r * 8] = (top[r] + peak[r]) * T.float32(1 / _LOG2E)

            @T.inline
            def store_direct():
                # Lanes 2i and 2i + 1 swap halves of two neighbouring 8-column blocks, so that a lane has 8 bytes to
                # store and four lanes fill a 32-byte sector of each row.
                odd = T.meta_var(lane % 2)
                for r in T.unroll(2):
                    for f in T.unroll(DV // 16):
                        a0 = T.meta_var(f * 8 + 2 * r)
                        T.ptx[PACK](w[0], O[a0 + 1] * shrink[r], O[a0] * shrink[r])
                        T.ptx[PACK](w[1], O[a0 + 5] * shrink[r], O[a0 + 4] * shrink[r])
                        T.ptx["shfl_sync.bfly.b32"](w[2], T.Select(odd == 1, w[0], w[1]), T.uint32(1),
                                                    T.uint32(31), T.uint32(0xFFFFFFFF))
                        w[3] = T.Select(odd == 1, w[1], w[2])
                        w[2] = T.Select(odd == 1, w[2], w[0])
                        if row + r * 8 < seq_q:
                            at = T.meta_var(th * o_head + (row + r * 8) * o_row + f * 16 + odd * 8 + lane % 4 // 2 * 4)
                            T.ptx["st.global.v2.b32"](o.ptr_to([tb, at]), w[2], w[3])
                    if DV % 16 > 0:
                        T.ptx[PACK](w[0], O[NO - 4 + 2 * r + 1] * shrink[r], O[NO - 4 + 2 * r] * shrink[r])
                        if row + r * 8 < seq_q:
                            T.ptx["st.global.b32"](o.ptr_to([tb, th * o_head + (row + r * 8) * o_row + DV - 8 + lane % 4 * 2]), w[0])

            @T.inline
            def store_bulk():
                # Each warp stages its 16 rows where its Q rows were, once no warp of the warpgroup can still read Q.
                T.ptx.bar.sync(T.Cast("uint32", wg + 4), T.uint32(128))
                for f in T.unroll(-(-DV // 16)):
                    at = T.meta_var(qs * Q_EL + f // 4 * (BQ * _CHUNK) + (wg * 64 + warp * 16) * _CHUNK)
                    for i in T.unroll(4):
                        # Behind a last half of 8 columns: what lies beyond the row is not stored.
                        a0 = T.meta_var(T.min(f * 8 + 2 * i, NO - 4 + 2 * i % 4))
                        T.ptx[PACK](w[i], O[a0 + 1] * shrink[i % 2], O[a0] * shrink[i % 2])
                    T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                        Qs.ptr_to([at + lane % 16 * _CHUNK + T.bitwise_xor(f % 4 * 2 + lane // 16, lane % 8) * 8]),
                        w[0], w[1], w[2], w[3])
                T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warp_sync()
                if lane == 0:
                    for ch in T.unroll(VCH):
                        T.ptx[STORE](T.address_of(o_map), ch * _CHUNK, th, m0 + wg * 64 + warp * 16, tb,
                                     Qs.ptr_to([qs * Q_EL + ch * (BQ * _CHUNK) + (wg * 64 + warp * 16) * _CHUNK]))
                    T.ptx.cp.async_.bulk.commit_group()

            stored = 0
            if PP:
                if wg == NC - 1:                      # the first warpgroup may begin
                    T.ptx.bar.arrive(T.uint32(1), T.uint32(256))
            take_place()
            while m0 >= 0:
                count_key_tiles()
                begin()
                T.cuda.mbarrier_wait(k_full.ptr_to([ks]), kph)
                if HALF:
                    if half != 0:
                        issue_half_qk()
                    else:
                        issue_qk()
                else:
                    issue_qk()
                wait_qk(0)
                find_peaks(count - 1)
                exponentiate()
                pack()
                if DIRECT:
                    if count - low == 1:
                        free_q()
                elif QB == 2:
                    free_stored(qs ^ 1)               # of the tile before
                for it in T.serial(count - low - 1):
                    if c.overlap:
                        T.cuda.mbarrier_wait(k_full.ptr_to([ks]), kph)
                        my_turn()
                        issue_qk()
                        if BEFORE:
                            rescale()
                        T.cuda.mbarrier_wait(v_full.ptr_to([vs]), vph)
                        if HALF:
                            issue_pv_of(it)
                        else:
                            issue_pv()
                        next_turn()
                        wait_qk(1)
                        if DIRECT:
                            if it == count - low - 2:
                                free_q()
                        find_peaks(count - 2 - it)
                        if c.pv_wait == "max":
                            call(pin, shrink[0], shrink[1])
                            wait_pv()
                            if UNDER:
                                rescale()
                        exponentiate()
                        if c.pv_wait == "late":
                            call(pin, total[0], total[1])
                        if c.pv_wait != "max":
                            wait_pv()
                    else:
                        if BEFORE:
                            rescale()
                        T.cuda.mbarrier_wait(v_full.ptr_to([vs]), vph)
                        issue_pv()
                        wait_pv()
                        T.cuda.mbarrier_wait(k_full.ptr_to([ks]), kph)
                        issue_qk()
                        wait_qk(0)
                        if DIRECT:
                            if it == count - low - 2:
                                free_q()
                        find_peaks(count - 2 - it)
                        exponentiate()
                    if AFTER:
                        rescale()
                    pack()
                if BEFORE:
                    rescale()
                T.cuda.mbarrier_wait(v_full.ptr_to([vs]), vph)
                issue_pv()
                wait_pv()
                for r in T.unroll(2):
                    total[r] = T.cuda.warp_sum(total[r], 4)
                    shrink[r] = T.Select(total[r] > T.float32(0), T.float32(1) / total[r], T.float32(0))
                    if c.lse:
                        store_lse(r)
                if DIRECT:
                    store_direct()
                else:
                    store_bulk()
                    if QB == 1:
                        free_stored(0)
                stored = 1
                advance_q()
                take_place()
            if not DIRECT:
                if lane == 0:
                    T.ptx.cp.async_.bulk.wait_group.read(0)
    # fmt: on
    return main
