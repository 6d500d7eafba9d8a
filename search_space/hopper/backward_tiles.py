"""Arithmetic of the attention backward kernels: shared memory, registers, tensor maps, launches. No tvm.

Three kernels (FlashAttention-2, arXiv:2307.08691, algorithm 2). `prepare`: dO . O and the LSE in log2 units of each
row, padded to whole query tiles, and dQ's float32 sums zeroed. `main`: a block a key tile. `finish`: dQ in its type.
"""

from dataclasses import dataclass
from typing import Any

from search_space.hopper.launch import integer, pointer
from search_space.hopper.limits import SHARED_BLOCK_BYTES, SHARED_RESERVED_BYTES, SHARED_SM_BYTES, round_up

Json = dict[str, Any]
_WG_ROWS = 64
# Producer and consumer registers a thread, by consumer warpgroups (setmaxnreg); 0 leaves what the launch gave.
# Blocks of one consumer come two to a multiprocessor.
_REGISTERS = {1: (24, 232), 2: (24, 240)}
_LAUNCH_REGISTERS = {1: 128, 2: 168}
# What a consumer needs beside accumulators: addresses, row state, ring positions.
_BESIDE_ACCUMULATORS = 8
PREPARE_THREADS = 256
FINISH_THREADS = 128


@dataclass(frozen=True)
class BackwardTile:
    """One thread block's key tile, and how it walks over the queries that see it.

    `consumers` warpgroups own 64 keys each, their dK and dV in registers. Scores are computed transposed (keys by
    queries), so that P and dS go back to the tensor cores as register operands; dS also goes through shared memory
    for dQ. Of dQ's tile [block_q, head_dim] each warpgroup computes 64 rows, or a share of the columns.
    """

    head_dim: int
    dtype: str
    causal: bool
    scale: float
    layout: str
    deterministic: bool
    block_q: int
    consumers: int
    q_stages: int
    do_stages: int
    ds_buffers: int
    heads_first: bool

    @property
    def block_kv(self) -> int:
        return _WG_ROWS * self.consumers

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def blocks_per_sm(self) -> int:
        """A block of one consumer leaves the tensor cores idle under its softmax: another block fills in."""
        return 2 if self.consumers == 1 else 1

    @property
    def registers(self) -> tuple[int, int]:
        return _REGISTERS[self.consumers]

    @property
    def entry_registers(self) -> int:
        """Registers a thread at launch."""
        return _LAUNCH_REGISTERS[self.consumers]

    @property
    def dq_rows(self) -> int:
        """Groups of 64 query rows; the warpgroups that share one divide its columns."""
        return self.block_q // _WG_ROWS

    @property
    def dq_columns(self) -> int:
        """Columns of dQ that a warpgroup computes."""
        return self.head_dim * self.dq_rows // self.consumers

    @property
    def accumulators(self) -> int:
        """Registers live together: S and dP of a tile, dK and dV, P and dS as 16-bit pairs, and this warpgroup's dQ,
        which takes S's place where it is as large (wgmma wants blocks of registers of one size)."""
        scores, share = self.block_q // 2, self.dq_columns // 2
        return 2 * scores + self.head_dim + 2 * (self.block_q // 4) + (0 if share == scores else share)

    @property
    def accumulator_room(self) -> int:
        return self.registers[1] - _BESIDE_ACCUMULATORS

    @property
    def shared_room(self) -> int:
        """Bytes of shared memory that a block can have."""
        return SHARED_BLOCK_BYTES if self.blocks_per_sm == 1 else SHARED_SM_BYTES // 2 - SHARED_RESERVED_BYTES

    @property
    def q_bytes(self) -> int:
        return self.block_q * self.head_dim * 2

    @property
    def kv_bytes(self) -> int:
        return self.block_kv * self.head_dim * 2

    @property
    def ds_bytes(self) -> int:
        return self.block_kv * self.block_q * 2

    @property
    def row_bytes(self) -> int:
        """One float32 a query row of the tile."""
        return self.block_q * 4

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order of `lower`'s allocations: K, V, rings of Q and dO, dS, row data, barriers."""
        end = 2 * self.kv_bytes + (self.q_stages + self.do_stages) * self.q_bytes
        end = round_up(end, 1024) + self.ds_buffers * self.ds_bytes
        end = round_up(end, 128) + (self.q_stages + self.do_stages) * self.row_bytes
        return round_up(round_up(end, 8) + 8 * (1 + 2 * self.q_stages + 2 * self.do_stages), 16)

    def strides(self, seq: str, heads: str) -> tuple[Any, Any, Any]:
        """Elements between heads, rows and batches, as launch formulas."""
        d = self.head_dim
        if self.layout == "bshd":
            return d, ["mul", heads, d], ["mul", seq, ["mul", heads, d]]
        return ["mul", seq, d], d, ["mul", heads, ["mul", seq, d]]

    def tensor_map(self, operand: str) -> Json:
        """Dims (dim, head, row, batch), a box of one head's rows, 64 elements wide; dk and dv leave 16 rows a box."""
        queries = operand in ("q", "do")
        seq, heads = ("seq_q", "heads_q") if queries else ("seq_kv", "heads_kv")
        rows = self.block_q if queries else 16 if operand in ("dk", "dv") else self.block_kv
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": self.dtype,
            "dims": [self.head_dim, heads, seq, "batch"],
            "strides": [["mul", stride, 2] for stride in self.strides(seq, heads)],
            "box": [64, 1, rows, 1],
            "swizzle": 128,
        }

    def q_tiles(self) -> Any:
        return ["ceildiv", "seq_q", self.block_q]

    def launch(self) -> Json:
        rows = ["mul", ["mul", "batch", "heads_q"], ["mul", self.q_tiles(), self.block_q]]
        workspace: Json = {
            "delta": {"nbytes": ["mul", rows, 4]},
            "lse2": {"nbytes": ["mul", rows, 4]},
            "dq_sum": {"nbytes": ["mul", rows, 4 * self.head_dim]},
        }
        if self.deterministic:
            workspace["turns"] = {"nbytes": ["mul", ["mul", ["mul", "batch", "heads_q"], self.q_tiles()], 4]}
        return {"workspace": workspace, "kernels": [self._prepare(rows), self._main(), self._finish()]}

    def _common(self) -> Json:
        head, row, batch = self.strides("seq_q", "heads_q")
        return {
            "delta_ptr": pointer("delta"),
            "lse2_ptr": pointer("lse2"),
            "sums_ptr": pointer("dq_sum"),
            "turns_ptr": pointer("turns" if self.deterministic else "delta"),
            "q_tiles": integer(self.q_tiles()),
            "padded": integer(["mul", self.q_tiles(), self.block_q]),
            "q_head": integer(head),
            "q_row": integer(row),
            "q_batch": integer(batch),
            **{name: integer(name) for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")},
        }

    def _prepare(self, rows: Any) -> Json:
        grid = ["ceildiv", rows, PREPARE_THREADS * 8 // self.head_dim]
        arguments = {"o_ptr": pointer("o"), "g_ptr": pointer("do"), "lse_ptr": pointer("lse"), "grid": integer(grid)}
        return _kernel("prepare_kernel", grid, PREPARE_THREADS, 0, {**self._common(), **arguments})

    def _main(self) -> Json:
        tiles = ["ceildiv", "seq_kv", self.block_kv]
        heads = ["mul", "batch", "heads_kv"]
        grid = ["mul", tiles, heads]
        arguments = {
            **{f"{o}_map": self.tensor_map(o) for o in ("q", "k", "v", "dk", "dv")},
            "g_map": self.tensor_map("do"),
            "grid": integer(grid),
            "kv_heads": integer(heads),
            "kv_tiles": integer(tiles),
        }
        return _kernel("main_kernel", grid, self.threads, self.shared_bytes(), {**self._common(), **arguments})

    def _finish(self) -> Json:
        grid = ["mul", ["mul", ["mul", "batch", "heads_q"], self.q_tiles()], self.consumers]
        arguments = {"dq_ptr": pointer("dq"), "grid": integer(grid)}
        return _kernel("finish_kernel", grid, FINISH_THREADS, 0, {**self._common(), **arguments})


def _kernel(symbol: str, grid: Any, block: int, shared: int, arguments: Json) -> Json:
    return {
        "symbol": symbol,
        "grid": grid,
        "block": block,
        "cluster": 1,
        "shared_bytes": shared,
        "dependent": False,
        "arguments": arguments,
    }
