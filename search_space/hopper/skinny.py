"""Arithmetic of the skinny (swapped-operand) GEMM: weights are the M side of wgmma. No tvm."""

from dataclasses import dataclass

from search_space.hopper.limits import round_up


@dataclass(frozen=True)
class Skinny:
    """A cluster of `split` x `share` blocks owns `share` neighbouring tiles of `rows` rows of B (columns of C).

    `pad_m`: rows of A padded to wgmma's N granularity (8). The `split` blocks of a tile divide K among them and add
    their float32 sums through distributed shared memory in rank order; `share` tiles get A by multicast.
    `red_buffers`: exchange buffers, two when a block goes on to another tile before its peers have read the first.
    """

    pad_m: int
    rows: int
    block_k: int
    stages: int
    consumers: int
    split: int
    share: int
    blocks_per_sm: int
    red_buffers: int
    early_b: bool
    trans_b: bool
    dtype: str
    epilogue: str = "none"

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def cluster(self) -> int:
        return self.split * self.share

    @property
    def rows_of_64(self) -> int:
        return self.rows // (64 * self.consumers)

    @property
    def accumulators(self) -> int:
        return self.rows_of_64 * self.pad_m // 2

    @property
    def vector(self) -> int:
        """Floats of one lane in one unit of the exchange (16-byte st.async where the width allows it)."""
        return 4 if self.pad_m % 16 == 0 else 2

    @property
    def a_bytes(self) -> int:
        return self.pad_m * self.block_k * 2

    @property
    def b_bytes(self) -> int:
        return self.rows * self.block_k * 2

    @property
    def exchange_bytes(self) -> int:
        return 0 if self.split == 1 else self.red_buffers * self.rows * self.pad_m * 4

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: B, A, exchange, barriers."""
        end = round_up(self.stages * self.b_bytes, 1024)
        end = round_up(end + self.stages * self.a_bytes, 128)
        end = round_up(end + self.exchange_bytes, 8)
        return end + 16 * self.stages + (8 * self.red_buffers if self.split > 1 else 0)

    def tensor_map(self, operand: str) -> dict[str, object]:
        if operand == "a":
            inner, outer, box = "k", "m", [64, self.pad_m // self.share]
        elif self.trans_b:
            inner, outer, box = "k", "n", [64, self.rows]
        else:
            inner, outer, box = "n", "k", [64, self.block_k]
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": self.dtype,
            "dims": [inner, outer],
            "strides": [["mul", inner, 2]],
            "box": box,
            "swizzle": 128,
        }
