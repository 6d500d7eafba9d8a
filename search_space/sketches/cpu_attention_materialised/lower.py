"""Lowers the materialising sketch: packed K, then for each query tile scores, softmax and output in one sweep."""

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from search_space.attention import AttentionWorkload
from search_space.cpu_attention_slices import slice_rows, slices
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering import attention_tiles as parts
from search_space.lowering import vector_math as vm
from search_space.lowering.attention_problem import Operands, Problem, local, scratch
from search_space.lowering.attention_tiles import Tiles
from search_space.sketches.cpu_attention_materialised.space import padded_keys
from search_space.target import Target


def lower(workload: AttentionWorkload, target: Target, knobs: Knobs) -> Lowered:
    """``main(q, k, v, o[, lse])``: one parallel task is one slice of the query rows of one KV head."""
    tiles = Tiles(
        Problem.of(workload, target),
        tile_m=knobs["tile_m"],
        tile_n=knobs["tile_n"],
        tile_v=knobs["tile_v"],
        block=padded_keys(workload, knobs),
        unroll=knobs["unroll"],
        pack_v=knobs["pack_v"],
    )
    per_head = slices(workload, knobs)
    with IRBuilder() as ib:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", "tirx.noalias": True})
            operands = tiles.problem.arguments()
            with T.parallel(0, workload.batch * workload.heads_kv * per_head) as task:
                _Slice(tiles, operands, slice_rows(workload, knobs), per_head, task).emit()
    return Lowered(tvm.IRModule({"main": ib.get()}))


class _Slice:
    """The code of one task: `rows` query rows from `first_row` on against every key that one of them sees."""

    def __init__(self, tiles: Tiles, operands: Operands, rows: int, per_head: int, task) -> None:
        self.tiles, self.problem, self.operands, self.rows = tiles, tiles.problem, operands, rows
        head = T.Bind(T.floordiv(task, per_head))
        self.batch = T.Bind(T.floordiv(head, self.problem.workload.heads_kv))
        self.kv_head = T.Bind(T.floormod(head, self.problem.workload.heads_kv))
        self.first_row = T.Bind(T.floormod(task, per_head) * rows)
        self.keys = scratch(tiles.block * tiles.dim)
        self.values = scratch(tiles.block * tiles.columns * tiles.tile_v) if tiles.pack_v else None
        self.query = scratch(tiles.tile_m * tiles.dim)
        self.scores = scratch(tiles.tile_m * tiles.pitch)

    def emit(self) -> None:
        t, where = self.tiles, (self.batch, self.kv_head)
        first, last = self.problem.visible_to_any(self.first_row, self.rows)
        self.key = T.Bind(T.floordiv(first, t.tile_n) * t.tile_n)
        held = T.Bind(T.max(last - self.key, T.int32(0)))
        parts.pack_keys(t, self.operands.k, self.keys, *where, self.key, T.floordiv(held + (t.tile_n - 1), t.tile_n))
        if t.pack_v:
            count = T.floordiv(held + (t.unroll - 1), t.unroll) * t.unroll
            parts.pack_values(t, self.operands.v, self.values, *where, self.key, count)
        left = T.min(T.int32(self.rows), T.int32(self.problem.rows) - self.first_row)
        with T.serial(0, T.floordiv(left + (t.tile_m - 1), t.tile_m)) as tile:
            self._tile(T.Bind(self.first_row + tile * t.tile_m))

    def _tile(self, row) -> None:
        t = self.tiles
        first, last = self.problem.visible_to_any(row, t.tile_m)
        begin = T.Bind(T.floordiv(T.max(first - self.key, T.int32(0)), t.tile_n))
        end = T.Bind(T.max(last - self.key, begin * t.tile_n))
        key_tiles = T.Bind(T.floordiv(end + (t.tile_n - 1), t.tile_n))
        free = [T.Bind(e) for e in self.problem.visible_to_all(row, t.tile_m)]
        parts.pack_queries(t, self.operands.q, self.query, self.batch, self.kv_head, row, t.tile_m)
        with T.serial(begin, key_tiles) as jt:
            parts.score_tile(t, lambda i, d: self.query[i * t.dim + d], self.keys, self.scores, jt)
        # In a loop of its own: its constants would push the accumulators of the score tile out of the registers.
        with T.serial(begin, key_tiles) as jt:
            parts.hide(t, self.scores, row, self.key, jt, *free)
        factors = self._softmax(row, begin * (t.tile_n // t.lanes), key_tiles * (t.tile_n // t.lanes))
        steps = T.Bind(T.floordiv(end + (t.unroll - 1), t.unroll) * t.unroll)
        self._output(row, begin * t.tile_n, steps, factors)

    def _softmax(self, row, begin, end):
        """Turns the scores into weights; returns 1 / the sum of each row."""
        factors = local(self.tiles.tile_m)
        with T.serial(0, self.tiles.tile_m) as i:
            maximum = parts.row_maximum(self.tiles, self.scores, i, begin, end)
            total = parts.exponentiate_row(self.tiles, self.scores, i, begin, end, maximum)
            T.buffer_store(factors, parts.inverse(total), [i])
            if self.operands.lse is not None:
                with T.If(row + i < self.problem.rows), T.Then():
                    at = (self.batch, self.kv_head, row + i)
                    parts.write_lse(self.problem, self.operands.lse, at, maximum, total)
        return factors

    def _output(self, row, begin, end, factors) -> None:
        t = self.tiles
        if t.pack_v:
            values = parts.values_packed(t, self.values)
        else:
            values = parts.values_in_place(t, self.operands.v, self.batch, self.kv_head, self.key)
        with T.serial(0, t.columns) as vo:
            acc = local(t.tile_m * t.tile_v)
            for e in range(0, t.tile_m * t.tile_v, t.lanes):
                vm.store(acc, e, vm.f32(0.0, t.lanes), t.lanes)
            parts.output_tile(t, self.scores, values(vo), acc, begin, end)
            for i in range(t.tile_m):
                with T.If(row + i < self.problem.rows), T.Then():
                    self._write(row + i, vo, acc, i * t.tile_v, factors[i])

    def _write(self, row, vo, acc, first: int, factor) -> None:
        t, dim = self.tiles, self.problem.workload.head_dim_v
        to = T.Bind(self.problem.query_row(self.batch, self.kv_head, row, dim) + t.column(vo))
        width = t.lanes if dim >= t.tile_v else 1
        for c in range(0, min(t.tile_v, dim), width):
            value = vm.load(acc, first + c, width) * vm.splat(factor, width)
            vm.store(self.operands.o, to + c, value, width)
