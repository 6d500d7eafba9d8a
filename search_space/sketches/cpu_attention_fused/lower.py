"""Lowers the fused sketch: FlashAttention's loops (arXiv:2205.14135, algorithm 1) with register-tiled products."""

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from search_space.attention import AttentionWorkload
from search_space.cpu_attention_slices import slice_rows, slices
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering import attention_tiles as parts
from search_space.lowering.attention_online import OnlineRows
from search_space.lowering.attention_problem import Operands, Problem, scratch
from search_space.lowering.attention_tiles import Tiles
from search_space.sketches.cpu_attention_fused.space import block_keys
from search_space.target import Target


def lower(workload: AttentionWorkload, target: Target, knobs: Knobs) -> Lowered:
    """``main(q, k, v, o[, lse])``: one parallel task is one slice of the query rows of one KV head."""
    problem = Problem.of(workload, target)
    tiles = Tiles(
        problem,
        tile_m=knobs["tile_m"],
        tile_n=knobs["tile_n"],
        tile_v=knobs["tile_v"],
        block=block_keys(workload, knobs),
        unroll=knobs["unroll"],
        pack_v=knobs["pack_v"],
    )
    rows = slice_rows(workload, knobs)
    with IRBuilder() as ib:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", "tirx.noalias": True})
            operands = problem.arguments()
            with T.parallel(0, workload.batch * workload.heads_kv * slices(workload, knobs)) as task:
                _Slice(tiles, operands, rows, slices(workload, knobs), task).emit()
    return Lowered(tvm.IRModule({"main": ib.get()}))


class _Slice:
    """The code of one task: `rows` query rows from `first_row` on, all keys that they see, block by block."""

    def __init__(self, tiles: Tiles, operands: Operands, rows: int, per_head: int, task) -> None:
        self.tiles, self.problem, self.operands, self.rows = tiles, tiles.problem, operands, rows
        head = T.Bind(T.floordiv(task, per_head))
        self.batch = T.Bind(T.floordiv(head, tiles.problem.workload.heads_kv))
        self.kv_head = T.Bind(T.floormod(head, tiles.problem.workload.heads_kv))
        self.first_row = T.Bind(T.floormod(task, per_head) * rows)
        self.count = T.Bind(T.min(T.int32(rows), T.int32(self.problem.rows) - self.first_row))
        self.keys = scratch(tiles.block * tiles.dim)
        self.values = scratch(tiles.block * tiles.columns * tiles.tile_v) if tiles.pack_v else None
        self.queries = scratch(rows * tiles.dim)
        self.state = OnlineRows(tiles, rows)
        self.scores = scratch(tiles.tile_m * tiles.pitch)

    def emit(self) -> None:
        t = self.tiles
        padded = T.Bind(T.floordiv(self.count + (t.tile_m - 1), t.tile_m) * t.tile_m)
        where = (self.batch, self.kv_head)
        parts.pack_queries(t, self.operands.q, self.queries, *where, self.first_row, padded)
        self.state.clear(padded)
        first, last = self._keys_of_slice()
        with T.serial(0, T.floordiv(T.max(last - first, T.int32(0)) + (t.block - 1), t.block)) as kb:
            key = T.Bind(first + kb * t.block)
            held = T.Bind(T.min(last - key, T.int32(t.block)))
            key_tiles = T.floordiv(held + (t.tile_n - 1), t.tile_n)
            parts.pack_keys(t, self.operands.k, self.keys, *where, key, key_tiles)
            if t.pack_v:
                count = T.floordiv(held + (t.unroll - 1), t.unroll) * t.unroll
                parts.pack_values(t, self.operands.v, self.values, *where, key, count)
            with T.serial(0, T.floordiv(padded, t.tile_m)) as tile:
                self._tile(tile * t.tile_m, key, held)
        self.state.write(self.operands, *where, self.first_row, self.count)

    def _keys_of_slice(self):
        """(first, last) of the keys that some row of the slice sees, the first one at the start of a key tile."""
        first, last = self.problem.visible_to_any(self.first_row, self.rows)
        return T.Bind(T.floordiv(first, self.tiles.tile_n) * self.tiles.tile_n), T.Bind(last)

    def _tile(self, row, key, held) -> None:
        """One tile of queries against the block of `held` keys from `key` on; `row` counts from the slice's first."""
        t = self.tiles
        at = T.Bind(self.first_row + row)
        first, last = self.problem.visible_to_any(at, t.tile_m)
        begin = T.Bind(T.floordiv(T.max(first - key, T.int32(0)), t.tile_n))
        end = T.Bind(T.min(last - key, held))
        with T.If(end > begin * t.tile_n), T.Then():
            key_tiles = T.Bind(T.floordiv(end + (t.tile_n - 1), t.tile_n))
            free = [T.Bind(e) for e in self.problem.visible_to_all(at, t.tile_m)]
            with T.serial(begin, key_tiles) as jt:
                parts.score_tile(t, self._query(row), self.keys, self.scores, jt)
            # In a loop of its own: its constants would push the accumulators of the score tile out of the registers.
            with T.serial(begin, key_tiles) as jt:
                parts.hide(t, self.scores, at, key, jt, *free)
            per_tile = t.tile_n // t.lanes
            alpha = self.state.exponentiate(self.scores, row, begin * per_tile, key_tiles * per_tile)
            steps = T.Bind(T.floordiv(end + (t.unroll - 1), t.unroll) * t.unroll)
            self.state.accumulate(self.scores, row, begin * t.tile_n, steps, alpha, self._values(key))

    def _values(self, key):
        if self.tiles.pack_v:
            return parts.values_packed(self.tiles, self.values)
        return parts.values_in_place(self.tiles, self.operands.v, self.batch, self.kv_head, key)

    def _query(self, row):
        return lambda i, d: self.queries[(row + i) * self.tiles.dim + d]
