"""Copies matrices whose rows TMA cannot read (stride not a multiple of 16 bytes) into rows that it can."""

from tvm.script import tirx as T

from search_space.lowering import hopper_ptx  # noqa: F401  sets how TVM treats CUDA source

WARPS = 8
UNROLL = 8  # independent loads of a lane


def pad_kernel(dtype: str, entry: str = "pad"):
    """PrimFunc `entry`: y[rows, pitch] = x[rows, cols] by the first `blocks` of `grid` blocks, the same for x2 by the rest.

    pitch is at least cols, a multiple of 8; what lies behind a row is left as it is, since TMA fills with zeros from column
    `cols` on. One warp copies one row: 4-byte stores; 4-byte loads where the row starts on an even element, else
    2-byte ones. rows2 = 0: one matrix only.
    """
    W, U = WARPS, UNROLL
    STEP = 64 * U

    # fmt: off
    @T.prim_func
    def pad(X_ptr: T.handle, Y_ptr: T.handle, X2_ptr: T.handle, Y2_ptr: T.handle, rows: T.int32, cols: T.int32,
            pitch: T.int32, rows2: T.int32, cols2: T.int32, pitch2: T.int32, blocks: T.int32, grid: T.int32):
        T.func_attr({"global_symbol": entry})
        X = T.match_buffer(X_ptr, (rows, cols), dtype=dtype, align=2)
        Y = T.match_buffer(Y_ptr, (rows, pitch), dtype=dtype, align=16)
        X2 = T.match_buffer(X2_ptr, (rows2, cols2), dtype=dtype, align=2)
        Y2 = T.match_buffer(Y2_ptr, (rows2, pitch2), dtype=dtype, align=16)
        T.device_entry()
        bx = T.cta_id([grid])
        warp = T.warp_id([W])
        lane = T.lane_id([32])
        w = T.alloc_local((U,), "uint32")
        lo = T.alloc_local((U,), "uint16")
        hi = T.alloc_local((U,), "uint16")

        @T.inline
        def copy_row(src, dst, row, width):
            t: T.int32
            t = 0
            while t < width:
                for u in T.unroll(U):
                    col = T.meta_var(t + u * 64 + lane * 2)
                    w[u] = T.uint32(0)
                    lo[u] = T.uint16(0)
                    hi[u] = T.uint16(0)
                    if (row & width & 1) == 0:
                        if col + 1 < width:
                            T.ptx.ld.global_.b32(w[u], src.ptr_to([row, col]))
                        elif col < width:
                            T.ptx.ld.global_.b16(lo[u], src.ptr_to([row, col]))
                    else:
                        if col < width:
                            T.ptx.ld.global_.b16(lo[u], src.ptr_to([row, col]))
                        if col + 1 < width:
                            T.ptx.ld.global_.b16(hi[u], src.ptr_to([row, col + 1]))
                for u in T.unroll(U):
                    col = T.meta_var(t + u * 64 + lane * 2)
                    if col < width:
                        T.ptx.st.global_.b32(dst.ptr_to([row, col]),
                                             w[u] | T.Cast("uint32", lo[u]) | (T.Cast("uint32", hi[u]) << T.uint32(16)))
                t = t + STEP

        T.ptx.griddepcontrol.launch_dependents()
        T.ptx.griddepcontrol.wait()
        if bx < blocks:
            if bx * W + warp < rows:
                copy_row(X, Y, bx * W + warp, cols)
        else:
            if (bx - blocks) * W + warp < rows2:
                copy_row(X2, Y2, (bx - blocks) * W + warp, cols2)
    # fmt: on
    return pad
