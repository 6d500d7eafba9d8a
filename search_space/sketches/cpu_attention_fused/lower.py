"""Lowers the fused sketch: FlashAttention's loops (arXiv:2205.14135, algorithm 1) with register-tiled products."""

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from search_space.attention import AttentionWorkload
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering import attention_tiles as parts
from search_space.lowering import vector_math as vm
from search_space.lowering.attention_problem import NO_MAXIMUM, Operands, Problem, local, scratch
from search_space.lowering.attention_tiles import Tiles
from search_space.sketches.cpu_attention_fused.space import block_keys, slice_rows, slices
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
        width = tiles.columns * tiles.tile_v
        self.keys = scratch(tiles.block * tiles.dim)
        self.values = scratch(tiles.block * width) if tiles.pack_v else None
        self.queries = scratch(rows * tiles.dim)
        self.sums = scratch(rows * width)
        self.row_max = scratch(rows)
        self.row_sum = scratch(rows)
        self.scores = scratch(tiles.tile_m * tiles.pitch)

    def emit(self) -> None:
        t = self.tiles
        padded = T.Bind(T.floordiv(self.count + (t.tile_m - 1), t.tile_m) * t.tile_m)
        where = (self.batch, self.kv_head)
        parts.pack_queries(t, self.operands.q, self.queries, *where, self.first_row, padded)
        self._clear(padded)
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
        self._write()

    def _keys_of_slice(self):
        """(first, last) of the keys that some row of the slice sees, the first one at the start of a key tile."""
        first, last = self.problem.visible_to_any(self.first_row, self.rows)
        return T.Bind(T.floordiv(first, self.tiles.tile_n) * self.tiles.tile_n), T.Bind(last)

    def _clear(self, padded) -> None:
        t = self.tiles
        with T.serial(0, padded) as i:
            T.buffer_store(self.row_max, T.float32(NO_MAXIMUM), [i])
            T.buffer_store(self.row_sum, T.float32(0.0), [i])
        with T.serial(0, padded * (t.columns * t.tile_v // t.lanes)) as e:
            vm.store(self.sums, e * t.lanes, vm.f32(0.0, t.lanes), t.lanes)

    def _tile(self, row, key, held) -> None:
        """One tile of queries against the block of `held` keys from `key` on; `row` counts from the slice's first."""
        t = self.tiles
        at = T.Bind(self.first_row + row)
        first, last = self.problem.visible_to_any(at, t.tile_m)
        begin = T.Bind(T.floordiv(T.max(first - key, T.int32(0)), t.tile_n))
        end = T.Bind(T.min(last - key, held))
        with T.If(end > begin * t.tile_n), T.Then():
            alpha = local(t.tile_m)
            key_tiles = T.Bind(T.floordiv(end + (t.tile_n - 1), t.tile_n))
            free = [T.Bind(e) for e in self.problem.visible_to_all(at, t.tile_m)]
            with T.serial(begin, key_tiles) as jt:
                parts.score_tile(t, self._query(row), self.keys, self.scores, jt)
                parts.hide(t, self.scores, at, key, jt, *free)
            self._softmax(row, begin * (t.tile_n // t.lanes), key_tiles * (t.tile_n // t.lanes), alpha)
            steps = T.floordiv(end + (t.unroll - 1), t.unroll) * t.unroll
            self._output(row, key, begin * t.tile_n, T.Bind(steps), alpha)

    def _query(self, row):
        return lambda i, d: self.queries[(row + i) * self.tiles.dim + d]

    def _softmax(self, row, begin, end, alpha) -> None:
        """Online softmax (arXiv:1805.02867): new maxima, the old sums scaled by alpha = 2^(old - new maximum)."""
        with T.serial(0, self.tiles.tile_m) as i:
            old = T.Bind(self.row_max[row + i])
            new = T.Bind(T.max(old, parts.row_maximum(self.tiles, self.scores, i, begin, end)))
            factor = T.Bind(vm.exp2_nonpositive(old - new, 1))
            total = parts.exponentiate_row(self.tiles, self.scores, i, begin, end, new)
            T.buffer_store(self.row_max, new, [row + i])
            T.buffer_store(self.row_sum, self.row_sum[row + i] * factor + total, [row + i])
            T.buffer_store(alpha, factor, [i])

    def _output(self, row, key, begin, end, alpha) -> None:
        t, lanes = self.tiles, self.tiles.lanes
        with T.serial(0, t.columns) as vo:
            acc = local(t.tile_m * t.tile_v)
            cells = [(i, c, i * t.tile_v + c) for i in range(t.tile_m) for c in range(0, t.tile_v, lanes)]
            for i, c, cell in cells:
                old = vm.load(self.sums, self._sum(row + i, vo) + c, lanes)
                vm.store(acc, cell, old * vm.splat(alpha[i], lanes), lanes)
            parts.output_tile(t, self.scores, self._value(key, vo), acc, begin, end)
            for i, c, cell in cells:
                vm.store(self.sums, self._sum(row + i, vo) + c, vm.load(acc, cell, lanes), lanes)

    def _sum(self, row, vo):
        """Offset of a row's running output; each column tile has columns of its own, those of the shifted one too."""
        return (row * self.tiles.columns + vo) * self.tiles.tile_v

    def _value(self, key, vo):
        t = self.tiles
        if t.pack_v:
            return lambda j, c: vm.load(self.values, (vo * t.block + j) * t.tile_v + c, t.lanes)
        row = T.Bind(self.problem.key_row(self.batch, self.kv_head, key, self.problem.workload.head_dim_v))
        step = self.problem.key_pitch(self.problem.workload.head_dim_v)
        start = T.Bind(row + t.column(vo))
        return lambda j, c: vm.load(self.operands.v, start + T.cast(j, "int64") * step + c, t.lanes)

    def _write(self) -> None:
        """Divides by the row sums; a row that saw no key is 0, its log-sum-exp -inf."""
        dim = self.problem.workload.head_dim_v
        with T.serial(0, self.count) as i:
            total = T.Bind(self.row_sum[i])
            inverse = T.Bind(T.Select(total > T.float32(0.0), T.float32(1.0) / total, T.float32(0.0)))
            to = T.Bind(self.problem.query_row(self.batch, self.kv_head, self.first_row + i, dim))
            parts.write_row(self.tiles, self.operands.o, to, self.sums, lambda vo: self._sum(i, vo), inverse)
            row = (self.batch, self.kv_head, self.first_row + i)
            parts.write_lse(self.problem, self.operands.lse, row, self.row_max[i], total)
