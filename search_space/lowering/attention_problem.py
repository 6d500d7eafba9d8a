"""What every CPU attention lowering needs of its workload: operands as flat buffers, row addresses, visible keys.

The query rows of the heads that share one KV head are folded into one matrix of `rows` = group * seq_q rows, so that a
tile of queries reads each key once for the whole group; row r is query r // group of head r % group, which keeps the
positions, and with them the masks' bounds, ascending.
"""

import math
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from search_space.attention import AttentionWorkload
from search_space.lowering.vector_math import LOG2_E
from search_space.target import Target
from search_space.workload import Operand

# Scores that the mask hides, and the running maximum before any key: finite, so that no difference of the two is NaN.
HIDDEN = -3.0e38
NO_MAXIMUM = -1.5e38


@dataclass(frozen=True)
class Operands:
    """The arguments of ``main``, flat and row-major, bfloat16 as uint16; `lse` is None unless the workload wants it."""

    q: object
    k: object
    v: object
    o: object
    lse: object | None


@dataclass(frozen=True)
class Problem:
    """`lanes`: float32 lanes of one vector register."""

    workload: AttentionWorkload
    lanes: int

    @staticmethod
    def of(workload: AttentionWorkload, target: Target) -> "Problem":
        return Problem(workload, target.vector_bits // 32)

    @property
    def group(self) -> int:
        return self.workload.heads_q // self.workload.heads_kv

    @property
    def rows(self) -> int:
        return self.group * self.workload.seq_q

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by: scores come out in base 2 or, with a softcap, as the argument of tanh."""
        w = self.workload
        return w.softmax_scale / w.softcap if w.softcap > 0 else w.softmax_scale * LOG2_E

    @property
    def capped_scale(self) -> float:
        """From tanh to base 2."""
        return self.workload.softcap * LOG2_E

    def arguments(self) -> Operands:
        """Declares the arguments of the PrimFunc that is being built."""
        declared = [_declare(o) for o in (*self.workload.inputs(), *self.workload.outputs())]
        buffers = [_bits(b) for b in declared]
        return Operands(*buffers, *([None] if len(buffers) == 4 else []))

    def query_of(self, row):
        """The query of a folded row; rows past the end stand for the last one."""
        row = T.min(row, T.int32(self.rows - 1))
        return row if self.group == 1 else T.floordiv(row, T.int32(self.group))

    def head_of(self, kv_head, row):
        if self.group == 1:
            return kv_head
        return kv_head * self.group + T.floormod(T.min(row, T.int32(self.rows - 1)), T.int32(self.group))

    def query_row(self, batch, kv_head, row, dim: int):
        """Offset of a folded row in q (dim = head_dim) or o (dim = head_dim_v)."""
        w = self.workload
        return self._row(batch, self.head_of(kv_head, row), self.query_of(row), w.heads_q, w.seq_q, dim)

    def key_row(self, batch, kv_head, key, dim: int):
        """Offset of a key in k (dim = head_dim) or v (dim = head_dim_v)."""
        return self._row(batch, kv_head, key, self.workload.heads_kv, self.workload.seq_kv, dim)

    def key_pitch(self, dim: int) -> int:
        """Elements from one key to the next in k or v."""
        return dim if self.workload.layout == "bhsd" else self.workload.heads_kv * dim

    def lse_row(self, batch, kv_head, row):
        w = self.workload
        head = T.cast(batch, "int64") * w.heads_q + self.head_of(kv_head, row)
        return head * w.seq_q + self.query_of(row)

    def _row(self, batch, head, position, heads: int, seq: int, dim: int):
        batch = T.cast(batch, "int64")
        if self.workload.layout == "bhsd":
            return ((batch * heads + head) * seq + position) * dim
        return ((batch * seq + position) * heads + head) * dim

    def visible(self, query):
        """(first, last): half-open range of the keys that a query sees; last may be 0 or below."""
        w = self.workload
        position = query + (w.seq_kv - w.seq_q)
        first = T.max(position - w.window_left, T.int32(0)) if w.window_left >= 0 else T.int32(0)
        last = T.int32(w.seq_kv)
        if w.causal:
            last = T.min(last, position + 1)
        elif w.window_right >= 0:
            last = T.min(last, position + (w.window_right + 1))
        return first, last

    def visible_to_all(self, row, tile_m: int):
        """(first, last) of the keys that every row of the tile of `tile_m` rows sees."""
        first, _ = self.visible(self.query_of(row + (tile_m - 1)))
        _, last = self.visible(self.query_of(row))
        return first, last

    def visible_to_any(self, row, tile_m: int):
        """(first, last) of the keys that some row of the tile sees."""
        first, _ = self.visible(self.query_of(row))
        _, last = self.visible(self.query_of(row + (tile_m - 1)))
        return first, last


def _declare(operand: Operand):
    return T.arg(operand.name, T.buffer((T.int64(math.prod(operand.shape)),), operand.dtype, layout=None))


def _bits(buffer):
    """bfloat16 as its bits, which vector_math loads and stores; other types as they are."""
    if str(buffer.dtype) != "bfloat16":
        return buffer
    return T.decl_buffer(buffer.shape, "uint16", data=buffer.data, layout=None)


def local(size: int, dtype: str = "float32"):
    """A buffer that LLVM keeps in registers as long as every index is a constant after unrolling."""
    return T.alloc_buffer((size,), dtype, scope="local", layout=None)


def scratch(size: int, dtype: str = "float32"):
    """A buffer in memory, private to the task that allocates it."""
    return T.alloc_buffer((size,), dtype, layout=None)
