"""How a tile's operands lie in shared memory, and the products of one pipeline stage."""

from tvm.script import tirx as T

from search_space.hopper.tiles import Tile
from search_space.lowering.hopper_ptx import WGMMA_TYPE


def strides(c: Tile):
    """Element and descriptor strides of both operands in shared memory (128-byte swizzle, slabs of 64 elements)."""
    if c.trans_a:  # stored [k, m]: slabs of 64 of m, each block_k rows deep
        a = {"slabs": c.block_m // 64, "slab": c.block_k * 64, "rows": c.block_k, "lead": c.block_k * 8}
        a["k16"] = lambda kk: kk * 128
        a["m64"] = c.block_k * 8
    else:
        a = {"slabs": c.block_k // 64, "slab": c.block_m * 64, "rows": c.block_m, "lead": 1}
        a["k16"] = lambda kk: kk // 4 * (c.block_m * 8) + kk % 4 * 2
        a["m64"] = 512
    if c.trans_b:  # stored [n, k]
        b = {"slabs": c.block_k // 64, "slab": c.block_n * 64, "rows": c.block_n, "lead": 1}
        b["k16"] = lambda kk: kk // 4 * (c.block_n * 8) + kk % 4 * 2
    else:
        b = {"slabs": c.block_n // 64, "slab": c.block_k * 64, "rows": c.block_k, "lead": c.block_k * 8}
        b["k16"] = lambda kk: kk * 128
    return a, b


def multiply(c: Tile):
    """A function (accumulators, descriptor of a, of b, begun) that issues every wgmma of one stage. Plain Python:
    unrolled while the script is parsed. `begun` False: the first ones overwrite the accumulators."""
    a, b = strides(c)
    p, width = WGMMA_TYPE[c.dtype], c.block_n // 2
    mma = f"wgmma.mma_async.sync.aligned.m64n{c.block_n}k16.f32.{p}.{p}"
    transposed = (int(c.trans_a), int(not c.trans_b))

    def stage(acc, da, db, begun):
        for kk in range(c.block_k // 16):
            for mi in range(c.rows_of_64):
                rows = [acc[mi * width + i] for i in range(width)]
                offset_a, offset_b = a["k16"](kk) + mi * a["m64"], b["k16"](kk)
                keep = T.ptx.pred(begun) if kk == 0 else T.bool(True)
                T.evaluate(T.ptx[mma](*rows, da + T.uint64(offset_a), db + T.uint64(offset_b), keep, 1, 1, *transposed))

    return stage


def swizzle_xor(width: int, row):
    """What TMA's swizzle of rows of `width` 16-bit elements does to the index of a 16-byte unit in `row`."""
    return {64: row % 8, 32: row // 2 % 4, 16: row // 4 % 2}[width]


def host_map_fields(c: Tile):
    """Arguments of TVM's own encoder, which only its host stub would run: the launcher encodes from `launch`."""
    rank = 3 if c.batched else 2
    return [*[64] * rank, *[128] * (rank - 1), *[8] * rank, *[1] * rank, 0, 3, 3, 0]
