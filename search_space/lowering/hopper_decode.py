"""The decode attention kernel for Hopper: one stream of K and V, read once, under small products (mma.sync).

Flash-Decoding's split over the keys: the keys of a unit (batch, KV head) are cut into pieces, which resident blocks take
one after the other while their ring of loads never runs dry; the block that ends a unit's last piece merges them. Scores
are in units of log2 with the scale folded in. A query row is r = i * group + h: all heads of a KV head are rows of one
product, so that its keys are read once for all of them.
"""

# ruff: noqa: E741  (O is the output, as everywhere in the papers)

import functools
import math
import operator

from tvm.script import tirx as T

from search_space.attention import UNLIMITED
from search_space.hopper.decode_tiles import ROWS, DecodeTile
from search_space.lowering import hopper_ptx as ptx

_LOG2E = math.log2(math.e)
_EX2 = "ex2.approx.ftz.f32"
_DUMMY_MAP = [*[64] * 4, *[128] * 3, *[8] * 4, *[1] * 4, 0, 3, 3, 0]
_LINE = 128  # bytes of a swizzled row
_HELD = 64  # floats of a lane, of pieces whose loads are on their way together in a merge


def _take_ticket():
    """(name, source): counts to `count`; what a block has written before is seen by whoever counts after it. The last
    one sets the counter back."""
    name = "tw_take_ticket"
    return name, (
        f"__device__ __forceinline__ int {name}(int* counter, int count) {{\n"
        "  int old;\n"
        '  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");\n'
        "  if (old == count - 1) *reinterpret_cast<volatile int*>(counter) = 0;\n"
        "  return old;\n"
        "}\n"
    )


def decode_kernel(c: DecodeTile):
    """PrimFunc `main`(q, k, v, o, lse, partial, counter, scalars); see DecodeTile.launch for the scalars."""
    D, DV, BKV, ST, W, RT, KW = c.head_dim, c.head_dim_v, c.block_kv, c.stages, c.warps, c.row_tiles, c.warp_keys
    KD, VN, KCH, VCH, NW = c.k_steps, c.v_pairs, c.k_chunks, c.v_chunks, c.consumers
    STAGED = c.q_in == "shared"
    NS, NO, NP, NQ = KW // 2, 8 * VN, KW // 4, 4 if STAGED else 4 * KD
    K_BYTES, V_BYTES = BKV * KCH * _LINE, BKV * VCH * _LINE
    PIECE, PIECE_O, MESSAGE = c.piece_floats, c.rows * 16 * VN, c.message_floats
    NB = 2 * VN  # blocks of 8 columns of O
    OWN = -(-NB // W)  # of which a warp stores so many
    LANE_COLS = -(-16 * VN // 128)  # vectors of 4 columns that a lane sums in a merge
    AHEAD = _HELD // (4 * LANE_COLS)
    LEFT, RIGHT, CAP = c.window_left, c.right, c.softcap
    SCALE = c.scale * _LOG2E
    dt, NEG = c.dtype, float("-inf")
    p = ptx.WGMMA_TYPE[dt]
    MMA = f"mma.sync.aligned.m16n8k16.row.col.f32.{p}.{p}.f32"
    LDK, LDV = "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    PACK, LOAD = f"cvt.rn.{p}x2.f32", ptx.tma_load(4, False)
    ticket = _take_ticket()

    # Plain Python: these run while the script is parsed, so their loops are unrolled.
    def some(buffer, first, n=4):
        return [buffer[first + i] for i in range(n)]

    def multiply_qk(S, Q, b, spots, offset, staged):
        for kk in range(KD):
            if STAGED:
                T.evaluate(T.ptx["ld.shared.v4.b32"](*some(Q, 0), staged + T.uint32(kk * 512)))
            left = some(Q, 0 if STAGED else 4 * kk)
            for pair in range(KW // 16):
                inside = kk // 4 * (BKV * _LINE) + pair * 16 * _LINE
                T.evaluate(T.ptx[LDK](*some(b, 0), spots[kk % 4] + offset + T.uint32(inside)))
                for half in range(2):
                    at = 8 * pair + 4 * half
                    sums = some(S, at) if kk else [T.float32(0)] * 4
                    T.evaluate(T.ptx[MMA](*some(S, at), *left, *some(b, 2 * half, 2), *sums))

    def multiply_pv(O, P, b, spots, offset):
        for step in range(KW // 16):
            for pair in range(VN):
                inside = pair // 4 * (BKV * _LINE) + step * 16 * _LINE
                T.evaluate(T.ptx[LDV](*some(b, 0), spots[pair % 4] + offset + T.uint32(inside)))
                for half in range(2):
                    at = 8 * pair + 4 * half
                    T.evaluate(T.ptx[MMA](*some(O, at), *some(P, 4 * step), *some(b, 2 * half, 2), *some(O, at)))

    def row_of(S, r):
        """What a thread holds of its row r (0, or 1: eight rows below)."""
        return [S[4 * i + 2 * r + e] for i in range(NS // 4) for e in range(2)]

    def call(helper, *args, returns="void"):
        return T.cuda.func_call(helper[0], *args, source_code=helper[1], return_type=returns)

    # fmt: off
    @T.prim_func
    def main(q_ptr: T.handle, k_ptr: T.handle, v_ptr: T.handle, o_ptr: T.handle, lse_ptr: T.handle,
             partial_ptr: T.handle, counter_ptr: T.handle, queue_ptr: T.handle, batch: T.int32, heads_q: T.int32, heads_kv: T.int32,
             seq_q: T.int32, seq_kv: T.int32, units: T.int32, unit_tiles: T.int32, length: T.int32, pieces: T.int32,
             items: T.int32, dynamic: T.int32, first: T.int32, grid: T.int32, group: T.int32, q_head: T.int32, q_row: T.int32, q_batch: T.int32, o_head: T.int32, o_row: T.int32,
             o_batch: T.int32):
        T.func_attr({"global_symbol": "main"})
        q = T.match_buffer(q_ptr, (batch, q_batch), dtype=dt, align=16)
        k = T.match_buffer(k_ptr, (batch, seq_kv, heads_kv, D), dtype=dt, align=16)
        v = T.match_buffer(v_ptr, (batch, seq_kv, heads_kv, DV), dtype=dt, align=16)
        o = T.match_buffer(o_ptr, (batch, o_batch), dtype=dt, align=16)
        lse = T.match_buffer(lse_ptr, (batch, heads_q, seq_q), dtype="float32", align=4)
        partial = T.match_buffer(partial_ptr, (items, PIECE), dtype="float32", align=16)
        counter = T.match_buffer(counter_ptr, (units,), dtype="int32", align=4)
        queue = T.match_buffer(queue_ptr, (1,), dtype="int32", align=4)
        k_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", k_map, dt, 4, k.data, *_DUMMY_MAP)
        v_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", v_map, dt, 4, v.data, *_DUMMY_MAP)

        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": c.blocks_per_sm})
        bx = T.cta_id([grid])
        warp = T.warp_id([NW + 1])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        Ks = pool.alloc((ST * K_BYTES // 2,), dt, align=1024)
        Vs = pool.alloc((ST * V_BYTES // 2,), dt, align=1024)
        if W > 1:
            message = pool.alloc((NW * MESSAGE,), "float32", align=16)
        if STAGED:
            Qs = pool.alloc((RT * KD * 128,), "uint32", align=16)     # fragments, lane by lane
        full = pool.alloc((ST,), "uint64", align=8)
        empty = pool.alloc((ST,), "uint64", align=8)
        places = pool.alloc((ST,), "int32", align=4)    # the item that a stage belongs to; -1 ends
        flag = pool.alloc((1,), "int32", align=4)
        pool.commit()

        if warp == NW:
            if lane < ST:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([lane]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([lane]), T.uint32(NW))
            T.ptx.fence.mbarrier_init.release.cluster()
            if lane == 0:
                T.ptx.prefetch.tensormap(T.address_of(k_map))
                T.ptx.prefetch.tensormap(T.address_of(v_map))
        T.cuda.cta_sync()
        T.ptx.griddepcontrol.launch_dependents()
        # Q, K and V, and the workspace, may be what the kernel before is still writing.
        T.ptx.griddepcontrol.wait()

        item: T.int32                   # number of a piece: units are fastest, so that heads side by side are read together
        following: T.int32
        unit: T.int32
        j: T.int32                      # tile of the unit
        stop: T.int32
        tb: T.int32
        th: T.int32
        stage: T.int32
        phase: T.int32
        stage = 0
        phase = 0

        @T.inline
        def advance():
            stage = stage + 1
            if stage == ST:
                stage = 0
                phase = phase ^ 1

        @T.inline
        def locate():
            j = T.truncdiv(item, units)
            unit = item - j * units
            j = j * length
            stop = T.min(unit_tiles, j + length)
            tb = T.truncdiv(unit, heads_kv)
            th = unit - tb * heads_kv

        if warp == NW:
            # ------------------------------------------------ producer
            if lane == 0:
                item = bx
                while item < items:
                    locate()
                    following = item + grid
                    if dynamic != 0:
                        following = grid + call(ticket, queue.ptr_to([0]), items, returns="int32")
                    while j < stop:
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        places[stage] = item
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(c.stage_bytes))
                        for ch in T.unroll(KCH):
                            T.ptx[LOAD](Ks.ptr_to([stage * (K_BYTES // 2) + ch * (BKV * 64)]), T.address_of(k_map),
                                        ch * 64, th, (first + j) * BKV, tb, full.ptr_to([stage]))
                        for ch in T.unroll(VCH):
                            T.ptx[LOAD](Vs.ptr_to([stage * (V_BYTES // 2) + ch * (BKV * 64)]), T.address_of(v_map),
                                        ch * 64, th, (first + j) * BKV, tb, full.ptr_to([stage]))
                        j = j + 1
                        advance()
                    item = following
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                places[stage] = -1
                T.ptx.mbarrier.arrive.shared.b64(full.ptr_to([stage]), T.uint32(1))
        else:
            # ------------------------------------------------ consumers
            Q = T.alloc_local((NQ,), "uint32")
            S = T.alloc_local((NS,), "float32")       # scores, then their powers of two
            P = T.alloc_local((NP,), "uint32")        # the powers as 16-bit pairs: the A operand of P V
            O = T.alloc_local((NO,), "float32")
            b = T.alloc_local((4,), "uint32")
            # A thread holds two rows, 8 apart; four neighbouring lanes share a row.
            top = T.alloc_local((2,), "float32")      # running maximum, log2 units
            total = T.alloc_local((2,), "float32")    # running sum, this thread's columns only
            peak = T.alloc_local((2,), "float32")
            base = T.alloc_local((2,), "float32")
            shrink = T.alloc_local((2,), "float32")
            at = T.alloc_local((2,), "int32")         # offsets of the two rows in Q, O
            hi = T.alloc_local((2,), "int32")         # keys that a row sees: [lo, hi), of this thread's columns
            lo = T.alloc_local((2,), "int32")
            ks = T.alloc_local((4,), "uint32")        # shared addresses of the swizzled columns that this lane loads
            vs = T.alloc_local((4,), "uint32")
            got = T.alloc_local((4,), "float32")
            theirs = T.alloc_local((4 * W,), "float32")
            w = T.alloc_local((2,), "uint32")
            hold = T.alloc_local((_HELD,), "float32")
            mine: T.int32                             # this warp's place among those that share keys
            tile: T.int32                             # and its tile of rows
            row: T.int32
            rows: T.int32
            plain_hi: T.int32                         # keys in [plain_lo, plain_hi) are seen by every row
            plain_lo: T.int32
            staged: T.uint32
            mine = warp % W
            tile = warp // W
            row = tile * ROWS + lane // 4
            rows = group * seq_q
            staged = T.uint32(0)
            if STAGED:
                staged = T.cuda.cvta_generic_to_shared(Qs.ptr_to([(tile * KD * 32 + lane) * 4]))
            for i in T.unroll(4):
                ks[i] = T.cuda.cvta_generic_to_shared(Ks.ptr_to([0])) + T.Cast("uint32", (mine * KW + lane // 16 * 8 + lane % 8) * _LINE + T.bitwise_xor(i * 2 + lane // 8 % 2, lane % 8) * 16)
                vs[i] = T.cuda.cvta_generic_to_shared(Vs.ptr_to([0])) + T.Cast("uint32", (mine * KW + lane % 16) * _LINE + T.bitwise_xor(i * 2 + lane // 16, lane % 8) * 16)
            plain_hi = seq_kv
            plain_lo = 0
            if RIGHT != UNLIMITED:
                plain_hi = T.min(seq_kv, seq_kv - seq_q + RIGHT + 1)
            if LEFT != UNLIMITED:
                plain_lo = T.max(0, seq_kv - 1 - LEFT)
            for r in T.unroll(2):
                place = T.meta_var(T.truncdiv(row + r * 8, group) + seq_kv - seq_q)
                hi[r] = seq_kv - lane % 4 * 2
                lo[r] = 0 - lane % 4 * 2
                if RIGHT != UNLIMITED:
                    hi[r] = T.min(seq_kv, place + RIGHT + 1) - lane % 4 * 2
                if LEFT != UNLIMITED:
                    lo[r] = T.max(0, place - LEFT) - lane % 4 * 2

            @T.inline
            def meet():
                T.ptx.bar.sync(T.uint32(1), T.uint32(32 * NW))

            @T.inline
            def load_q_step(kk, to):
                for r in T.unroll(2):
                    for half in T.unroll(2):
                        Q[to + 2 * half + r] = T.uint32(0)
                        if (row + r * 8 < rows) & (kk * 16 + half * 8 < D):
                            T.ptx["ld.global.b32"](Q[to + 2 * half + r], q.ptr_to([tb, at[r] + kk * 16 + half * 8 + lane % 4 * 2]))

            @T.inline
            def load_q():
                for r in T.unroll(2):
                    at[r] = (th * group + (row + r * 8) % group) * q_head + T.truncdiv(row + r * 8, group) * q_row
                if STAGED:
                    # The warps share the loads; the last merge has seen all of them past the unit before.
                    for kk in T.unroll(KD):
                        if kk % W == mine:
                            load_q_step(kk, 0)
                            T.ptx["st.shared.v4.b32"](Qs.ptr_to([((tile * KD + kk) * 32 + lane) * 4]), Q[0], Q[1], Q[2], Q[3])
                    meet()
                else:
                    for kk in T.unroll(KD):
                        load_q_step(kk, 4 * kk)

            @T.inline
            def scale():
                # A product of its own: fused with the subtraction of a rounded maximum, scores of 1e11 would be left
                # with powers of thousands.
                for i in T.unroll(NS):
                    T.ptx["mul.rn.f32"](S[i], S[i], T.float32(SCALE))

            @T.inline
            def soften():
                # cap * tanh(s / cap), by powers: tanh.approx would be off by 2^-11 of the cap.
                for i in T.unroll(NS):
                    T.ptx[_EX2](S[i], S[i] * T.float32(2 * c.scale * _LOG2E / CAP))
                    T.ptx["rcp.approx.ftz.f32"](S[i], S[i] + T.float32(1))
                    S[i] = T.float32(CAP * _LOG2E) - T.float32(2 * CAP * _LOG2E) * S[i]

            @T.inline
            def hide(key0):
                for r in T.unroll(2):
                    at[r] = key0 + mine * KW
                for i in T.unroll(NS):
                    key = T.meta_var(at[i % 4 // 2] + i // 4 * 8 + i % 2)
                    S[i] = T.Select((key < hi[i % 4 // 2]) & (key >= lo[i % 4 // 2]), S[i], T.float32(NEG))

            @T.inline
            def rise(r):
                # From top and peak to the new base, and the factor for what was summed under the old maximum. A row
                # that has seen no key keeps -inf; 0 is subtracted there, since -inf - -inf is NaN.
                peak[r] = T.max(peak[r], top[r])
                base[r] = T.Select(peak[r] == T.float32(NEG), T.float32(0), peak[r])
                T.ptx[_EX2](shrink[r], top[r] - base[r])
                top[r] = peak[r]

            @T.inline
            def softmax():
                peak[0] = functools.reduce(T.max, row_of(S, 0))
                peak[1] = functools.reduce(T.max, row_of(S, 1))
                for r in T.unroll(2):
                    peak[r] = T.cuda.warp_max(peak[r], 4)
                    rise(r)
                for i in T.unroll(NS):
                    T.ptx[_EX2](S[i], S[i] - base[i % 4 // 2])
                total[0] = total[0] * shrink[0] + functools.reduce(operator.add, row_of(S, 0))
                total[1] = total[1] * shrink[1] + functools.reduce(operator.add, row_of(S, 1))
                for i in T.unroll(NO):
                    O[i] = O[i] * shrink[i % 4 // 2]
                for i in T.unroll(NP):
                    T.ptx[PACK](P[i], S[2 * i + 1], S[2 * i])

            @T.inline
            def fold_warps():
                # Every warp hands over all it has, lane to lane, and sums the blocks of columns that it is to store, in
                # the order of the warps.
                if W > 1:
                    for i in T.unroll(NB):
                        T.ptx["st.shared.v4.f32"](message.ptr_to([warp * MESSAGE + i * 128 + lane * 4]), O[4 * i], O[4 * i + 1], O[4 * i + 2], O[4 * i + 3])
                    T.ptx["st.shared.v4.f32"](message.ptr_to([warp * MESSAGE + NB * 128 + lane * 4]), top[0], top[1], total[0], total[1])
                    meet()
                    for i in T.unroll(4 * OWN):
                        O[i] = T.float32(0)
                    for r in T.unroll(2):
                        top[r] = T.float32(NEG)
                        total[r] = T.float32(0)
                    for other in T.unroll(W):
                        T.ptx["ld.shared.v4.f32"](theirs[4 * other], theirs[4 * other + 1], theirs[4 * other + 2], theirs[4 * other + 3],
                                                  message.ptr_to([(tile * W + other) * MESSAGE + NB * 128 + lane * 4]))
                        for r in T.unroll(2):
                            top[r] = T.max(top[r], theirs[4 * other + r])
                    for r in T.unroll(2):
                        base[r] = T.Select(top[r] == T.float32(NEG), T.float32(0), top[r])
                    for other in T.unroll(W):
                        for r in T.unroll(2):
                            T.ptx[_EX2](shrink[r], theirs[4 * other + r] - base[r])
                            total[r] = total[r] + theirs[4 * other + 2 + r] * shrink[r]
                        for i in T.unroll(OWN):
                            if i * W + mine < NB:
                                T.ptx["ld.shared.v4.f32"](got[0], got[1], got[2], got[3], message.ptr_to(
                                    [(tile * W + other) * MESSAGE + (i * W + mine) * 128 + lane * 4]))
                                for e in T.unroll(4):
                                    O[4 * i + e] = O[4 * i + e] + got[e] * shrink[e // 2]
                    meet()
                for r in T.unroll(2):
                    total[r] = T.cuda.warp_sum(total[r], 4)

            @T.inline
            def store_lse(here, sum_, top_):
                if c.lse:
                    T.ptx["lg2.approx.ftz.f32"](base[0], sum_)
                    lse[tb, th * group + here % group, T.truncdiv(here, group)] = (top_ + base[0]) * T.float32(1 / _LOG2E)

            @T.inline
            def store_whole():
                for r in T.unroll(2):
                    if row + r * 8 < rows:
                        at[r] = (th * group + (row + r * 8) % group) * o_head + T.truncdiv(row + r * 8, group) * o_row
                        shrink[r] = T.Select(total[r] > T.float32(0), T.float32(1) / total[r], T.float32(0))
                        for i in T.unroll(OWN):
                            if (i * W + mine) * 8 < DV:
                                T.ptx[PACK](w[0], O[4 * i + 2 * r + 1] * shrink[r], O[4 * i + 2 * r] * shrink[r])
                                T.ptx["st.global.b32"](o.ptr_to([tb, at[r] + (i * W + mine) * 8 + lane % 4 * 2]), w[0])
                        if (mine == 0) & (lane % 4 == 0):
                            store_lse(row + r * 8, total[r], top[r])

            @T.inline
            def store_piece():
                for r in T.unroll(2):
                    if row + r * 8 < rows:
                        for i in T.unroll(OWN):
                            if i * W + mine < NB:
                                T.ptx["st.global.v2.f32"](partial.ptr_to([item, (row + r * 8) * (16 * VN) + (i * W + mine) * 8 + lane % 4 * 2]),
                                                          O[4 * i + 2 * r], O[4 * i + 2 * r + 1])
                        if (mine == 0) & (lane % 4 == 0):
                            T.ptx["st.global.v2.f32"](partial.ptr_to([item, PIECE_O + (row + r * 8) * 2]), top[r], total[r])

            @T.inline
            def merge_row(here, acc):
                # One warp sums one row over the pieces, in their order; a lane has 4 columns.
                n: T.int32
                top[0] = T.float32(NEG)
                total[0] = T.float32(0)
                for i in T.unroll(4 * LANE_COLS):
                    acc[i] = T.float32(0)
                for part in T.serial((pieces + AHEAD - 1) // AHEAD):
                    n = T.min(AHEAD, pieces - part * AHEAD)
                    got[0] = T.float32(NEG)
                    got[1] = T.float32(0)
                    if lane < n:
                        T.ptx["ld.global.cg.v2.f32"](got[0], got[1], partial.ptr_to(
                            [(part * AHEAD + lane) * units + unit, PIECE_O + here * 2]))
                    for i in T.unroll(AHEAD):
                        for vec in T.unroll(LANE_COLS):
                            col = T.meta_var(vec * 128 + lane * 4)
                            spot = T.meta_var((i * LANE_COLS + vec) * 4)
                            for e in T.unroll(4):
                                hold[spot + e] = T.float32(0)
                            if (i < n) & (col < 16 * VN):
                                T.ptx["ld.global.cg.v4.f32"](hold[spot], hold[spot + 1], hold[spot + 2], hold[spot + 3], partial.ptr_to(
                                    [(part * AHEAD + i) * units + unit, here * (16 * VN) + col]))
                    peak[0] = T.cuda.warp_max(got[0], 32)
                    rise(0)
                    T.ptx[_EX2](peak[1], got[0] - base[0])
                    total[0] = total[0] * shrink[0] + T.cuda.warp_sum(got[1] * peak[1], 32)
                    for i in T.unroll(4 * LANE_COLS):
                        acc[i] = acc[i] * shrink[0]
                    for i in T.unroll(AHEAD):
                        base[1] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), peak[1], i, 32)
                        for e in T.unroll(4 * LANE_COLS):
                            acc[e] = acc[e] + hold[i * LANE_COLS * 4 + e] * base[1]
                shrink[0] = T.Select(total[0] > T.float32(0), T.float32(1) / total[0], T.float32(0))
                at[0] = (th * group + here % group) * o_head + T.truncdiv(here, group) * o_row
                for vec in T.unroll(LANE_COLS):
                    col = T.meta_var(vec * 128 + lane * 4)
                    if col < DV:
                        for e in T.unroll(2):
                            T.ptx[PACK](w[e], acc[4 * vec + 2 * e + 1] * shrink[0], acc[4 * vec + 2 * e] * shrink[0])
                        T.ptx["st.global.v2.b32"](o.ptr_to([tb, at[0] + col]), w[0], w[1])
                if lane == 0:
                    store_lse(here, total[0], top[0])

            @T.inline
            def take_item():
                T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                item = places[stage]

            take_item()
            while item >= 0:
                locate()
                load_q()
                for r in T.unroll(2):
                    top[r] = T.float32(NEG)
                    total[r] = T.float32(0)
                for i in T.unroll(NO):
                    O[i] = T.float32(0)
                while j < stop:
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    multiply_qk(S, Q, b, ks, T.Cast("uint32", stage * K_BYTES), staged)
                    if CAP > 0:
                        soften()
                    else:
                        scale()
                    if ((first + j + 1) * BKV > plain_hi) | ((first + j) * BKV < plain_lo):
                        hide((first + j) * BKV)
                    softmax()
                    multiply_pv(O, P, b, vs, T.Cast("uint32", stage * V_BYTES))
                    T.cuda.warp_sync()
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([stage]), T.uint32(1))
                    j = j + 1
                    advance()
                fold_warps()
                if pieces == 1:
                    store_whole()
                else:
                    store_piece()
                    meet()
                    if (warp == 0) & (lane == 0):
                        flag[0] = call(ticket, counter.ptr_to([unit]), pieces, returns="int32")
                    meet()
                    if flag[0] == pieces - 1:
                        here: T.int32
                        here = warp
                        while here < rows:
                            merge_row(here, O)
                            here = here + NW
                take_item()
    # fmt: on
    return main
