"""Arithmetic of the GEMV sketch (m up to 4): how threads walk over B. No tvm."""

from dataclasses import dataclass

from search_space.hopper.launch import Json, integer, pointer

WARP = 32


@dataclass(frozen=True)
class Gemv:
    """One block's columns of C and how its threads share k. Every element of B goes through one register once.

    B stored [n, k] (`trans_b`): a warp reads `rows` rows of B at a time, `vector` elements a load and lane; `split`
    warps divide k among them. B stored [k, n]: `lanes` neighbouring lanes read `vector` columns each, the other lanes
    of the warp and all other warps take other rows of k. `unroll`: loads of B in flight for each row (or column) of a
    lane. Partial sums are float32 and are added in a fixed order.
    """

    m: int
    vector: int
    rows: int
    unroll: int
    warps: int
    split: int
    lanes: int
    trans_b: bool
    dtype: str
    epilogue: str = "none"
    batched: bool = False
    early_b: bool = False

    @property
    def threads(self) -> int:
        return WARP * self.warps

    @property
    def columns(self) -> int:
        """Columns of C of one block."""
        return self.rows * self.warps // self.split if self.trans_b else self.lanes * self.vector

    @property
    def parts(self) -> int:
        """Partial sums of one element of C that meet in shared memory."""
        return self.split if self.trans_b else self.warps

    @property
    def words(self) -> int:
        """32-bit registers of one load of B."""
        return max(1, self.vector // 2)

    @property
    def registers(self) -> int:
        """Registers that hold data at once: loads of B, of A, and sums."""
        if self.trans_b:
            return self.unroll * self.words * (self.rows + self.m) + self.m * self.rows
        return self.unroll * (self.words + self.m) + self.m * self.vector

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of B that one block has asked for at once."""
        return self.threads * self.unroll * self.vector * 2 * (self.rows if self.trans_b else 1)

    def shared_bytes(self) -> int:
        return 4 * self.parts * self.m * self.columns

    def launch(self, dependent: bool) -> Json:
        tiles: object = ["ceildiv", "n", self.columns]
        grid: object = ["mul", "batch", tiles] if self.batched else tiles
        kernel = {
            "symbol": "main_kernel",
            "grid": grid,
            "block": self.threads,
            "cluster": 1,
            "shared_bytes": self.shared_bytes(),
            "dependent": dependent,
            "arguments": {
                "A_ptr": {**pointer("a"), "align": 2 * (self.vector if self.trans_b else 1)},
                "B_ptr": {**pointer("b"), "align": 2 * self.vector},
                "bias_ptr": pointer("bias"),
                "C_ptr": pointer("c"),
                "tiles": integer(tiles),
                "grid": integer(grid),
                **{name: integer(name) for name in ("n", "k", "batch")},
            },
        }
        return {"workspace": {}, "kernels": [kernel]}
