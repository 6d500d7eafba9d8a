"""Arithmetic of a warp-specialised TMA + wgmma tile: shared memory, registers, tensor maps. No tvm."""

from dataclasses import dataclass

from search_space.hopper.limits import round_up

# Accumulator and address registers a consumer thread has, by number of consumer warpgroups: setmaxnreg hands the
# producer's registers over; 65536 registers are shared by (consumers + 1) * 128 threads.
PRODUCER_REGISTERS = {1: 0, 2: 40, 3: 32}
CONSUMER_REGISTERS = {1: 0, 2: 232, 3: 160}
# Largest number of float32 accumulators a thread can hold beside addresses before ptxas spills (seen with nvcc 13.0).
ACCUMULATORS = {1: 200, 2: 208, 3: 128}


@dataclass(frozen=True)
class Tile:
    """One thread block's tile of C and how its operands reach it.

    `consumers` warpgroups issue wgmma, one more loads. Cooperative: each owns block_m / consumers rows of one tile.
    Ping-pong: each works on tiles of its own, so that one's epilogue overlaps the other's main loop.
    `cluster_m` blocks along m share B by multicast, `cluster_n` along n share A.
    `store`: "tma" (stmatrix, then bulk stores), "rows" (stmatrix, then one row at a time, for rows of C whose stride
    is not a multiple of 16 bytes) or "direct" (fragments straight to memory).
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    consumers: int
    pingpong: bool
    cluster_m: int
    cluster_n: int
    store: str
    trans_a: bool
    trans_b: bool
    dtype: str
    epilogue: str = "none"
    batched: bool = False
    stream_k: bool = False
    early_b: bool = False
    store_buffers: int = 2

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def row_step(self) -> int:
        """What block_m is a multiple of."""
        return 64 if self.pingpong else 64 * self.consumers

    @property
    def rows_of_64(self) -> int:
        """wgmma row blocks (64 rows) of one consumer."""
        return self.block_m // self.row_step

    @property
    def accumulators(self) -> int:
        return self.rows_of_64 * self.block_n // 2

    @property
    def a_bytes(self) -> int:
        return self.block_m * self.block_k * 2

    @property
    def b_bytes(self) -> int:
        return self.block_n * self.block_k * 2

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.b_bytes

    @property
    def store_width(self) -> int:
        """Columns of one staged store."""
        return next(w for w in (64, 32, 16, 8) if self.block_n % w == 0)

    @property
    def staging_bytes(self) -> int:
        if self.store == "direct":
            return 0
        return self.consumers * 4 * self.store_buffers * 16 * self.store_width * 2

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: A, B, staging, barriers."""
        end = round_up(self.stages * self.a_bytes, 1024)
        end = round_up(end + self.stages * self.b_bytes, 1024)
        return round_up(end + self.staging_bytes, 8) + 16 * self.stages

    def with_most_stages(self, limit: int, most: int = 16) -> int:
        """As many pipeline stages as `limit` bytes of shared memory hold, at most `most`; 0 when none fits."""
        fixed = self.staging_bytes + 2048
        return max(0, min(most, (limit - fixed) // (self.stage_bytes + 16)))

    def partial_bytes(self) -> int:
        """float32 partial sums of one block (stream-K)."""
        return self.block_m * self.block_n * 4

    def tensor_map(self, operand: str) -> dict[str, object]:
        """How TMA sees operand a, b or c: dims innermost first, as formulas of m, n, k, batch."""
        if operand == "c":
            inner, outer, box = "n", "m", [self.store_width, 16]
            swizzle = {64: 128, 32: 64, 16: 32}.get(self.store_width, 0)
        else:
            transposed_k = self.trans_a if operand == "a" else not self.trans_b
            extent, block = ("m", self.block_m) if operand == "a" else ("n", self.block_n)
            shared_by = self.cluster_n if operand == "a" else self.cluster_m
            inner, outer = (extent, "k") if transposed_k else ("k", extent)
            box = [64, (self.block_k if transposed_k else block) // shared_by]
            swizzle = 128
        described: dict[str, object] = {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": self.dtype,
            "dims": [inner, outer],
            "strides": [["mul", inner, 2]],
            "box": box,
            "swizzle": swizzle,
        }
        if self.batched:
            described["dims"] = [inner, outer, "batch"]
            described["strides"] = [["mul", inner, 2], ["mul", ["mul", inner, 2], outer]]
            described["box"] = [*box, 1]
        return described
