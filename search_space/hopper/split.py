"""Arithmetic of a tile whose k is divided inside a cluster. No tvm."""

from dataclasses import dataclass

from search_space.hopper.tiles import Tile


@dataclass(frozen=True)
class SplitTile(Tile):
    """A tile whose k is divided among `parts`: `split` blocks of a cluster, and in each block `turns` warpgroups.

    With two turns the consumers take every other stage instead of every other block of rows: each multiplies whole
    tiles, so that one issues while the other waits. The float32 sums of each part go to their owners: part p owns
    columns [p, p + 1) * block_n / parts of the tile, adds what it was sent in order and stores it. The exchange lies
    where the pipeline stages lay, since every load has been used by then.
    """

    split: int = 2
    turns: int = 1

    @property
    def parts(self) -> int:
        return self.split * self.turns

    @property
    def row_step(self) -> int:
        return 64 * self.consumers // self.turns

    @property
    def cluster(self) -> int:
        return self.split * self.cluster_m * self.cluster_n

    @property
    def slice_width(self) -> int:
        """Columns of C that one part stores."""
        return self.block_n // self.parts

    @property
    def store_width(self) -> int:
        return next(w for w in (64, 32, 16, 8) if self.slice_width % w == 0)

    @property
    def exchange_bytes(self) -> int:
        """float32 sums that a block's parts receive, their own included."""
        return self.turns * self.block_m * self.block_n * 4

    @property
    def staging_bytes(self) -> int:
        """Every chunk of the slice has a staging buffer of its own: none is written twice."""
        return 0 if self.store == "direct" else self.turns * self.block_m * self.slice_width * 2

    @property
    def ring_bytes(self) -> int:
        return self.stages * self.stage_bytes

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: A, B, barriers; the exchange overlays A and B."""
        return self.ring_bytes + 16 * self.stages + 8

    def with_most_stages(self, limit: int, most: int = 16) -> int:
        return max(0, min(most, (limit - 8) // (self.stage_bytes + 16)))
