"""Arithmetic of the skinny float8 GEMM: weights are the M side of wgmma, scales per tensor or per block. No tvm."""

from dataclasses import dataclass

from search_space.hopper.kmajor import SLAB_BYTES
from search_space.hopper.launch import Json, integer, pointer
from search_space.hopper.limits import resident_clusters, round_up


@dataclass(frozen=True)
class Skinny8:
    """A cluster of `split` blocks owns a tile of `rows` rows of B (columns of C) and divides k among its blocks.

    `pad_m`: rows of A padded to wgmma's N granularity (8). A stage holds `slabs` slabs of 128 elements of k. Partial
    sums are float32 and meet through distributed shared memory, added in rank order. `red_buffers`: exchange
    buffers, two when a cluster goes on to another tile before its peers have read the first.
    """

    pad_m: int
    rows: int
    slabs: int
    stages: int
    consumers: int
    split: int
    blocks_per_sm: int
    red_buffers: int
    early_b: bool
    dtype_out: str
    scales: str = "none"
    epilogue: str = "none"

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def rows_of_64(self) -> int:
        return self.rows // (64 * self.consumers)

    @property
    def sums(self) -> int:
        return self.rows_of_64 * self.pad_m // 2

    @property
    def accumulators(self) -> int:
        """float32 registers of one thread: the sums and, with block scales, two slabs' products beside them."""
        return self.sums * (3 if self.scales == "block" else 1)

    @property
    def vector(self) -> int:
        """Floats of one lane in one unit of the exchange (16-byte st.async where the width allows it)."""
        return 4 if self.pad_m % 16 == 0 else 2

    @property
    def a_bytes(self) -> int:
        return self.pad_m * self.slabs * SLAB_BYTES

    @property
    def b_bytes(self) -> int:
        return self.rows * self.slabs * SLAB_BYTES

    @property
    def exchange_bytes(self) -> int:
        return 0 if self.split == 1 else self.red_buffers * self.rows * self.pad_m * 4

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: B, A, exchange, barriers."""
        end = round_up(self.stages * self.b_bytes, 1024) + self.stages * self.a_bytes
        end = round_up(round_up(end, 128) + self.exchange_bytes, 8)
        return end + 16 * self.stages + (8 * self.red_buffers if self.split > 1 else 0)

    def tensor_map(self, operand: str) -> Json:
        outer, rows = ("m", self.pad_m) if operand == "a" else ("n", self.rows)
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": "float8_e4m3",
            "dims": ["k", outer],
            "strides": ["k"],
            "box": [SLAB_BYTES, rows],
            "swizzle": SLAB_BYTES,
        }

    def launch(self, multiprocessors: int, *, dependent: bool) -> Json:
        resident = resident_clusters(self.split, multiprocessors, self.blocks_per_sm)
        clusters = ["min", ["ceildiv", "n", self.rows], resident]
        kernel = {
            "symbol": "main_kernel",
            "grid": ["mul", clusters, self.split],
            "block": self.threads,
            "cluster": self.split,
            "shared_bytes": self.shared_bytes(),
            "dependent": dependent,
            "arguments": {
                "A_map": self.tensor_map("a"),
                "B_map": self.tensor_map("b"),
                "C_ptr": pointer("c"),
                "bias_ptr": pointer("bias"),
                "a_scale_ptr": pointer("a_scale"),
                "b_scale_ptr": pointer("b_scale"),
                "clusters": integer(clusters),
                **{name: integer(name) for name in ("m", "n", "k")},
            },
        }
        return {"workspace": {}, "kernels": [kernel]}
