"""The products of one stage of the K-major tile kernel, and what adds them to the sums of a tile."""

from tvm.script import tirx as T

from search_space.hopper.kmajor import KTile
from search_space.lowering import hopper_ptx as ptx


def promote(width):
    """(name, source): sums += products * scale of their row, over one thread's fragments of 64 rows; `scale` has one
    for each of the thread's two rows."""
    name = f"tw_promote_{width}"
    return name, (
        f"__device__ __forceinline__ void {name}(float* sums, const float* products, const float* scale) {{\n"
        "#pragma unroll\n"
        f"  for (int i = 0; i < {width}; ++i) sums[i] = fmaf(products[i], scale[i >> 1 & 1], sums[i]);\n"
        "}\n"
    )


def multiply(c: KTile, rows_of_64: int):
    """A function (registers, descriptor of a, of b, begun) that issues every wgmma of one stage on `rows_of_64` blocks of
    rows. Plain Python: unrolled while the script is parsed. `begun`: a predicate; where it is false the first ones
    overwrite the registers."""
    width, float8 = c.block_n // 2, c.itemsize == 1
    p = "e4m3" if float8 else ptx.WGMMA_TYPE[c.dtype]
    mma = f"wgmma.mma_async.sync.aligned.m64n{c.block_n}k{32 // c.itemsize}.f32.{p}.{p}"
    layout = () if float8 else (0, 0)

    def stage(acc, da, db, begun):
        for kk in range(c.slabs * 4):
            for mi in range(rows_of_64):
                rows = [acc[mi * width + i] for i in range(width)]
                oa = kk // 4 * (c.block_m * 8) + kk % 4 * 2 + mi * 512
                ob = kk // 4 * (c.block_n * 8) + kk % 4 * 2
                keep = T.bool(True) if kk else begun
                T.evaluate(T.ptx[mma](*rows, da + T.uint64(oa), db + T.uint64(ob), keep, 1, 1, *layout))

    return stage
