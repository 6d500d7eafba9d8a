"""Arithmetic of a warp-specialised attention tile: shared memory, registers, tensor maps, launch. No tvm."""

from dataclasses import dataclass
from typing import Any

from search_space.attention import UNLIMITED
from search_space.hopper.launch import integer, pointer
from search_space.hopper.limits import round_up

Json = dict[str, Any]
# Producer and consumer registers a thread, by consumer warpgroups. setmaxnreg hands the producer's over: together they
# must stay within what the launch gave (168 * 3 with 384 threads, 128 * 4 with 512), or the increase waits for ever.
_REGISTERS = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
# A producer that also fetches tile numbers spills with 24.
_REGISTERS_DYNAMIC = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
# What a consumer needs beside accumulators (row state, addresses, ring positions) before ptxas spills or serialises
# wgmma (C7512): seen with nvcc 13.0, 3 consumers, from 136 live accumulators of 160 registers on.
_BESIDE_ACCUMULATORS = 28
# And for the first key of each of its rows: 3 consumers spill with 124 live accumulators.
_WINDOW_STATE = 12
_LAUNCH_REGISTERS = {1: 255, 2: 168, 3: 128}
_WG_ROWS = 64
_CHUNK = 64  # columns of a 128-byte swizzled TMA box


@dataclass(frozen=True)
class AttentionTile:
    """One thread block's query tile and how it walks over the keys.

    `consumers` warpgroups of 64 query rows each; one more warpgroup loads. K and V have rings of `stages` tiles of
    `block_kv` keys. `pv_wait` says how much of the softmax of the next tile is done before the warpgroup waits for this
    tile's P V: "early" leaves it to ptxas (which waits first), "max" after the row maxima, "late" after all of it.
    """

    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    scale: float
    lse: bool
    layout: str
    block_kv: int
    stages: int
    q_buffers: int
    consumers: int
    overlap: bool
    pingpong: bool
    rescale: str
    lazy: int
    pv_wait: str
    diagonal: str
    epilogue: str
    dynamic: bool

    @property
    def block_q(self) -> int:
        return _WG_ROWS * self.consumers

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """(producer, consumer) for setmaxnreg; 0 leaves what the launch gave."""
        return (_REGISTERS_DYNAMIC if self.dynamic else _REGISTERS)[self.consumers]

    @property
    def entry_registers(self) -> int:
        """Registers a thread at launch: all that 65536 allow for this many threads, a multiple of 8."""
        return _LAUNCH_REGISTERS[self.consumers]

    @property
    def accumulators(self) -> int:
        """Registers live together: the scores, the output, and the packed probabilities that P V reads."""
        return self.block_kv // 2 + self.head_dim_v // 2 + self.block_kv // 4

    @property
    def accumulator_room(self) -> int:
        window = _WINDOW_STATE if self.window_left != UNLIMITED else 0
        return (self.registers[1] or 248) - _BESIDE_ACCUMULATORS - window

    @property
    def right(self) -> int:
        """Keys behind its own position that a query sees; -1 means all."""
        return 0 if self.causal else self.window_right

    @property
    def k_chunks(self) -> int:
        """Boxes of 64 columns; what lies beyond the head is filled with zeros."""
        return -(-self.head_dim // _CHUNK)

    @property
    def v_chunks(self) -> int:
        return -(-self.head_dim_v // _CHUNK)

    @property
    def q_bytes(self) -> int:
        return self.block_q * self.k_chunks * _CHUNK * 2

    @property
    def k_bytes(self) -> int:
        return self.block_kv * self.k_chunks * _CHUNK * 2

    @property
    def v_bytes(self) -> int:
        return self.block_kv * self.v_chunks * _CHUNK * 2

    def shared_bytes(self) -> int:
        """Bytes of the pool in the order in which `lower` allocates: Q (O is staged there), K, V, barriers, places."""
        end = round_up(self.q_buffers * self.q_bytes, 1024)
        end = round_up(end + self.stages * self.k_bytes, 1024)
        end += self.stages * self.v_bytes
        barriers = 16 * self.q_buffers + 32 * self.stages
        return round_up(round_up(end, 8) + barriers, 16) + 16 * self.q_buffers

    def strides(self, seq: str, heads: str, d: int) -> tuple[Any, Any, Any]:
        """Elements between heads, rows of `d` elements and batches, as launch formulas."""
        if self.layout == "bshd":
            return d, ["mul", heads, d], ["mul", seq, ["mul", heads, d]]
        return ["mul", seq, d], d, ["mul", heads, ["mul", seq, d]]

    def tensor_map(self, operand: str) -> Json:
        """How TMA sees q, k, v or o: dims (dim, head, row, batch), a box of one head's rows, 64 elements wide."""
        seq, heads = ("seq_q", "heads_q") if operand in "qo" else ("seq_kv", "heads_kv")
        rows = {"q": self.block_q, "o": 16}.get(operand, self.block_kv)
        dim = self.head_dim if operand in "qk" else self.head_dim_v
        return {
            "kind": "tensor_map",
            "operand": operand,
            "dtype": self.dtype,
            "dims": [dim, heads, seq, "batch"],
            "strides": [["mul", stride, 2] for stride in self.strides(seq, heads, dim)],
            "box": [_CHUNK, 1, rows, 1],
            "swizzle": 128,
        }

    def tiles(self) -> Any:
        return ["mul", ["ceildiv", "seq_q", self.block_q], ["mul", "batch", "heads_q"]]

    def launch(self, multiprocessors: int, *, persistent: bool, group: int) -> Json:
        """`group`: heads interleaved in launch order, 0 for all of them."""
        tiles = self.tiles()
        grid: Any = ["min", tiles, multiprocessors] if persistent else tiles
        heads: Any = ["mul", "batch", "heads_q"]
        head, row, batch = self.strides("seq_q", "heads_q", self.head_dim_v)
        arguments: Json = {
            **{f"{o}_map": self.tensor_map(o) for o in "qkvo"},
            "o_ptr": pointer("o"),
            "lse_ptr": pointer("lse"),
            "counter_ptr": pointer("counter"),
            "tiles": integer(tiles),
            # Of all batches. TIRx would compute the product on the host, as a parameter with a name of its own.
            "heads": integer(heads),
            "grid": integer(grid),
            "group": integer(["min", group, heads] if group else heads),
            "o_head": integer(head),
            "o_row": integer(row),
            "o_batch": integer(batch),
            **{name: integer(name) for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")},
        }
        kernel = {
            "symbol": "main_kernel",
            "grid": grid,
            "block": self.threads,
            "cluster": 1,
            "shared_bytes": self.shared_bytes(),
            "dependent": False,
            "arguments": arguments,
        }
        return {"workspace": {"counter": {"nbytes": 4, "zero": True}} if self.dynamic else {}, "kernels": [kernel]}
