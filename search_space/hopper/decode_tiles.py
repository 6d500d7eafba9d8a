"""Arithmetic of the decode attention kernel: tiles of keys, shared memory, registers, launch. No tvm."""

from dataclasses import dataclass
from typing import Any

from search_space.attention import UNLIMITED
from search_space.hopper.launch import Json, integer, pointer
from search_space.hopper.limits import REGISTERS_SM, REGISTERS_THREAD, round_up

_CHUNK = 64  # columns of a 128-byte swizzled TMA box
ROWS = 16  # of one mma (m16n8k16)
# Row state, addresses and ring positions of a consumer beside fragments and accumulators (read from ptxas, nvcc 13.0).
_BESIDE_FRAGMENTS = 44


@dataclass(frozen=True)
class DecodeTile:
    """How a block walks over the keys of (batch, KV head) units.

    The query rows of all heads that share a KV head, `group` a query position, are the rows of the product, in
    `row_tiles` tiles of 16. `warps` warps share each tile of keys, `warp_keys` keys each, and keep a softmax of their
    own; they are merged at the end of a unit, in the order of the warps. `q_in`: a warp holds its rows of Q in
    registers, or reads them from shared memory for each tile. One more warp loads: a ring of `stages` tiles of K and V.
    A unit's keys are cut into pieces, numbered with units fastest; a block takes one piece after the other. The pieces
    of a unit are merged by the block that ends last, in the order of the keys.
    """

    head_dim: int
    head_dim_v: int
    dtype: str
    scale: float
    softcap: float
    causal: bool
    window_left: int
    window_right: int
    lse: bool
    layout: str
    row_tiles: int
    warps: int
    warp_keys: int
    stages: int
    blocks_per_sm: int
    q_in: str

    @property
    def block_kv(self) -> int:
        return self.warps * self.warp_keys

    @property
    def rows(self) -> int:
        """Query rows the kernel has room for."""
        return ROWS * self.row_tiles

    @property
    def consumers(self) -> int:
        return self.row_tiles * self.warps

    @property
    def threads(self) -> int:
        return 32 * (self.consumers + 1)

    @property
    def k_chunks(self) -> int:
        return -(-self.head_dim // _CHUNK)

    @property
    def v_chunks(self) -> int:
        return -(-self.head_dim_v // _CHUNK)

    @property
    def k_steps(self) -> int:
        """Steps of 16 columns of Q and K."""
        return -(-self.head_dim // 16)

    @property
    def v_pairs(self) -> int:
        """Pairs of 8-column blocks of V and O."""
        return -(-self.head_dim_v // 16)

    @property
    def right(self) -> int:
        """Keys behind its own position that a query sees; -1 means all."""
        return 0 if self.causal else self.window_right

    @property
    def stage_bytes(self) -> int:
        """Of one tile of K and V: whole boxes, columns beyond the head are filled with zeros."""
        return self.block_kv * (self.k_chunks + self.v_chunks) * 2 * _CHUNK

    @property
    def message_floats(self) -> int:
        """What a warp hands over in a merge: of each lane its part of O, two maxima and two sums."""
        return 32 * (8 * self.v_pairs + 4)

    @property
    def piece_floats(self) -> int:
        """Of a unit's piece in the workspace: O, maxima and sums of all rows."""
        return self.rows * (16 * self.v_pairs + 2)

    @property
    def fragments(self) -> int:
        """Registers of a consumer: Q, O, scores and probabilities, and two pairs of operand blocks on their way."""
        q = 4 * self.k_steps if self.q_in == "registers" else 8
        return q + 8 * self.v_pairs + 3 * self.warp_keys // 4 + 8

    @property
    def registers(self) -> int:
        """That a launch can give a thread, in units of 8; the four quarters of an SM take whole warps."""
        return min(REGISTERS_THREAD, REGISTERS_SM // round_up(self.threads * self.blocks_per_sm, 128) // 8 * 8)

    @property
    def fragment_room(self) -> int:
        return self.registers - _BESIDE_FRAGMENTS

    @property
    def q_bytes(self) -> int:
        return self.rows * 16 * self.k_steps * 2 if self.q_in == "shared" else 0

    def shared_bytes(self) -> int:
        """Bytes of the pool, in the order in which `lower` allocates: K, V, messages, Q, barriers, places, a flag."""
        end = self.stages * self.stage_bytes
        end += self.consumers * self.message_floats * 4 if self.warps > 1 else 0
        return end + self.q_bytes + 20 * self.stages + 4

    def strides(self, seq: str, heads: Any, dim: int) -> tuple[Any, Any, Any]:
        """Elements between heads, rows and batches, as launch formulas."""
        if self.layout == "bshd":
            return dim, ["mul", heads, dim], ["mul", seq, ["mul", heads, dim]]
        return ["mul", seq, dim], dim, ["mul", heads, ["mul", seq, dim]]

    def tensor_map(self, operand: str) -> Json:
        """How TMA sees k or v: dims (dim, head, row, batch), a box of one head's rows, 64 elements wide."""
        dim = self.head_dim if operand == "k" else self.head_dim_v
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": self.dtype,
            "dims": [dim, "heads_kv", "seq_kv", "batch"],
            "strides": [["mul", stride, 2] for stride in self.strides("seq_kv", "heads_kv", dim)],
            "box": [_CHUNK, 1, self.block_kv, 1],
            "swizzle": 128,
        }

    def first_tile(self) -> Any:
        """The first tile of keys that any row sees, as a formula."""
        if self.window_left == UNLIMITED:
            return 0
        before = ["sub", ["sub", "seq_kv", "seq_q"], self.window_left]
        return ["div", ["max", 0, before], self.block_kv]

    def cut(self, resident: int, waves: int) -> tuple[Any, Any, Any]:
        """(tiles of a unit, tiles of a piece, pieces of a unit) as formulas: about `waves` pieces a resident block."""
        tiles: Any = ["sub", ["ceildiv", "seq_kv", self.block_kv], self.first_tile()]
        wanted = ["min", tiles, ["max", 1, ["div", resident * waves, ["mul", "batch", "heads_kv"]]]]
        length: Any = ["ceildiv", tiles, wanted]
        return tiles, length, ["ceildiv", tiles, length]

    def launch(self, multiprocessors: int, *, waves: int, dynamic: bool, dependent: bool) -> Json:
        """`dynamic`: a block fetches its next piece when its loads have got that far, instead of every grid'th."""
        units: Any = ["mul", "batch", "heads_kv"]
        resident = multiprocessors * self.blocks_per_sm
        unit_tiles, length, pieces = self.cut(resident, waves)
        items: Any = ["mul", units, pieces]
        grid: Any = ["min", resident, items]
        q = self.strides("seq_q", "heads_q", self.head_dim)
        o = self.strides("seq_q", "heads_q", self.head_dim_v)
        arguments: Json = {
            **{f"{name}_map": self.tensor_map(name) for name in "kv"},
            **{f"{name}_ptr": pointer(name) for name in ("q", "o", "lse", "partial", "counter", "queue")},
            "units": integer(units),
            "unit_tiles": integer(unit_tiles),
            "length": integer(length),
            "pieces": integer(pieces),
            "items": integer(items),
            "dynamic": integer(int(dynamic)),
            "first": integer(self.first_tile()),
            "grid": integer(grid),
            "group": integer(["div", "heads_q", "heads_kv"]),
            **{f"q_{n}": integer(s) for n, s in zip(("head", "row", "batch"), q)},
            **{f"o_{n}": integer(s) for n, s in zip(("head", "row", "batch"), o)},
            **{name: integer(name) for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")},
        }
        kernel = {
            "symbol": "main_kernel",
            "grid": grid,
            "block": self.threads,
            "cluster": 1,
            "shared_bytes": self.shared_bytes(),
            "dependent": dependent,
            "arguments": arguments,
        }
        workspace = {
            "partial": {"nbytes": ["if", ["sub", pieces, 1], ["mul", items, 4 * self.piece_floats], 16]},
            "counter": {"nbytes": ["mul", units, 4], "zero": True},
            "queue": {"nbytes": 4, "zero": True},
        }
        return {"workspace": workspace, "kernels": [kernel]}
