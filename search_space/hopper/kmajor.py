"""Arithmetic of the K-major tile kernel (float8 with scales, groups): shared memory, registers, launch. No tvm."""

from dataclasses import dataclass

from search_space.hopper.launch import Json, integer, pointer
from search_space.hopper.limits import resident_clusters, round_up

SLAB_BYTES = 128  # of k in one row of a swizzled slab
_STORE_BUFFERS = 2
ITEMSIZE = {"float8_e4m3": 1, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class KTile:
    """One block's tile of C, both operands with k contiguous: A [rows, k], B [groups, n, k].

    `slabs`: 128-byte slabs of k in one pipeline stage. `promote`: every stage's products are added to float32 registers
    by ordinary additions, as block scales need and as wgmma's own float8 accumulator (14 bits of each addition's
    mantissa survive: DeepSeek-V3, section 3.5.2) cannot do. `overlap`: these additions run under the next stage's
    products, which go to a second set of registers. `store`: "tma", "rows" (16-byte stores, any number of
    rows) or "direct" (fragments, any n). `grouping`: which rows belong to which B, read on the device.
    """

    block_m: int
    block_n: int
    slabs: int
    stages: int
    consumers: int
    pingpong: bool
    cluster_m: int
    cluster_n: int
    store: str
    dtype: str
    dtype_out: str
    scales: str = "none"
    promote: bool = False
    overlap: bool = False
    grouping: str = "none"
    epilogue: str = "none"

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def block_k(self) -> int:
        return self.slabs * SLAB_BYTES // self.itemsize

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def grouped(self) -> bool:
        return self.grouping != "none"

    @property
    def rows_of_64(self) -> int:
        """wgmma row blocks (64 rows) of one consumer."""
        return self.block_m // (64 if self.pingpong else 64 * self.consumers)

    @property
    def accumulators(self) -> int:
        """float32 registers of one thread: the sums and, with `promote`, the products of 64 rows and one stage, twice
        with `overlap`."""
        return (self.rows_of_64 + self.promote + self.overlap) * self.block_n // 2

    @property
    def a_bytes(self) -> int:
        return self.block_m * self.slabs * SLAB_BYTES

    @property
    def b_bytes(self) -> int:
        return self.block_n * self.slabs * SLAB_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.b_bytes

    @property
    def store_width(self) -> int:
        """Columns of one staged store."""
        return next(w for w in (64, 32, 16) if self.block_n % w == 0)

    @property
    def store_buffers(self) -> int:
        return _STORE_BUFFERS

    @property
    def staging_bytes(self) -> int:
        return 0 if self.store == "direct" else self.consumers * 4 * _STORE_BUFFERS * 16 * self.store_width * 2

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: A, B, staging, barriers."""
        end = self.stages * self.stage_bytes + self.staging_bytes
        return round_up(end, 8) + 16 * self.stages

    def tensor_map(self, operand: str) -> Json:
        """How TMA sees a, b or c: dims innermost first, as formulas of m, n, k, groups."""
        rows: object = ["mul", "groups", "m"] if self.grouped else "m"
        if operand == "c":
            swizzle = {64: 128, 32: 64, 16: 32}[self.store_width]
            dtype, dims, box = self.dtype_out, ["n", rows], [self.store_width, 16]
            strides: list[object] = [["mul", "n", 2]]
        else:
            row_bytes = ["mul", "k", self.itemsize]
            block, shared_by = (self.block_m, self.cluster_n) if operand == "a" else (self.block_n, self.cluster_m)
            dtype, swizzle = self.dtype, SLAB_BYTES
            dims, strides = ["k", rows if operand == "a" else "n"], [row_bytes]
            box = [SLAB_BYTES // self.itemsize, block // shared_by]
            if operand == "b" and self.grouped:
                dims, strides, box = [*dims, "groups"], [row_bytes, ["mul", row_bytes, "n"]], [*box, 1]
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": dtype,
            "dims": dims,
            "strides": strides,
            "box": box,
            "swizzle": swizzle,
        }

    def launch(self, multiprocessors: int, *, group: int, by_n: bool, persistent: bool) -> Json:
        """`group`, `by_n`: raster. Where rows are grouped the number of tiles is known on the device alone: the grid
        is then what is resident, or what all groups could need where that is less."""
        resident = resident_clusters(self.cluster, multiprocessors)
        tiles: object = [
            "mul",
            ["ceildiv", "m", self.block_m * self.cluster_m],
            ["ceildiv", "n", self.block_n * self.cluster_n],
        ]
        if self.grouped:
            # Contiguous groups of unequal size take one tile more each than equal ones at most.
            rows = self.block_m * self.cluster_m
            row_tiles = ["mul", "groups", ["add", ["ceildiv", "m", rows], 1]]
            tiles = ["mul", row_tiles, ["ceildiv", "n", self.block_n * self.cluster_n]]
        clusters: object = ["min", tiles, resident] if persistent or self.grouped else tiles
        arguments: Json = {
            **{f"{o.upper()}_map": self.tensor_map(o) for o in "abc"},
            "C_ptr": pointer("c"),
            "bias_ptr": pointer("bias"),
            "a_scale_ptr": pointer("a_scale"),
            "b_scale_ptr": pointer("b_scale"),
            "ends_ptr": pointer("offsets" if self.grouping == "contiguous" else "counts"),
            "group": integer(group),
            "by_n": integer(int(by_n)),
            "clusters": integer(clusters),
            # Of one group; `rows` of A altogether.
            "rows": integer(["mul", "groups", "m"] if self.grouped else "m"),
            **{name: integer(name) for name in ("m", "n", "k", "groups")},
        }
        kernel = {
            "symbol": "main_kernel",
            "grid": ["mul", clusters, self.cluster],
            "block": self.threads,
            "cluster": self.cluster,
            "shared_bytes": self.shared_bytes(),
            "dependent": False,
            "arguments": arguments,
        }
        return {"workspace": {}, "kernels": [kernel]}
