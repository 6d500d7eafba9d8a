"""Lowers the decode sketch: dot products along head_dim, online softmax over blocks of keys, pieces combined."""

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from search_space.attention import AttentionWorkload
from search_space.cpu_model import ceil_div, round_up
from search_space.knob import Knobs
from search_space.lowered import Lowered
from search_space.lowering import attention_tiles as parts
from search_space.lowering import vector_math as vm
from search_space.lowering.attention_online import OnlineRows
from search_space.lowering.attention_problem import Operands, Problem, local, scratch
from search_space.lowering.attention_tiles import Tiles
from search_space.sketches.cpu_attention_decode.space import block_keys, pieces, split_keys
from search_space.target import Target


def lower(workload: AttentionWorkload, target: Target, knobs: Knobs) -> Lowered:
    """``main(q, k, v, o[, lse])``: one parallel task is one piece of the keys of one KV head."""
    problem = Problem.of(workload, target)
    lanes = problem.lanes
    # Masks and softmax go vector by vector: a "key tile" of theirs is one vector of scores.
    block = block_keys(workload, knobs, lanes)
    tiles = Tiles(problem, knobs["tile_m"], lanes, knobs["tile_v"], block, unroll=1, pack_v=False)
    count, piece = pieces(workload, knobs, lanes), split_keys(workload, knobs, lanes)
    heads = workload.batch * workload.heads_kv
    with IRBuilder() as ib:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", "tirx.noalias": True})
            operands = problem.arguments()
            partial = OnlineRows(tiles, heads * count * _padded_rows(tiles)) if count > 1 else None
            with T.parallel(0, heads * count) as task:
                _Piece(tiles, operands, knobs["tile_n"], piece, count, task).emit(partial)
            if partial is not None:
                with T.parallel(0, heads) as head:
                    _combine(tiles, operands, partial, count, head)
    return Lowered(tvm.IRModule({"main": ib.get()}))


def _padded_rows(tiles: Tiles) -> int:
    return round_up(tiles.problem.rows, tiles.tile_m)


class _Piece:
    """The code of one task: every query row of a KV head against `piece` keys."""

    def __init__(self, tiles: Tiles, operands: Operands, tile_n: int, piece: int, count: int, task) -> None:
        self.tiles, self.problem, self.operands = tiles, tiles.problem, operands
        self.tile_n, self.piece, self.task = tile_n, piece, task
        head = T.Bind(T.floordiv(task, count))
        self.batch = T.Bind(T.floordiv(head, self.problem.workload.heads_kv))
        self.kv_head = T.Bind(T.floormod(head, self.problem.workload.heads_kv))
        self.first_key = T.Bind(T.floormod(task, count) * piece)
        self.vectors = ceil_div(self.problem.workload.head_dim, tiles.lanes)
        self.queries = scratch(_padded_rows(tiles) * self.vectors * tiles.lanes)
        self.scores = scratch(tiles.tile_m * tiles.pitch)

    def emit(self, partial: OnlineRows | None) -> None:
        """Writes the output, or into `partial` when the keys are split."""
        t, rows = self.tiles, _padded_rows(self.tiles)
        state = partial or OnlineRows(t, rows)
        base = self.task * rows if partial else T.int32(0)
        self._pack_queries(rows)
        state.clear(rows, base)
        first, last = self.problem.visible_to_any(T.int32(0), rows)
        first = T.Bind(T.max(T.floordiv(first, t.lanes) * t.lanes, self.first_key))
        last = T.Bind(T.min(last, self.first_key + self.piece))
        with T.serial(0, T.floordiv(T.max(last - first, T.int32(0)) + (t.block - 1), t.block)) as kb:
            key = T.Bind(first + kb * t.block)
            end = T.Bind(T.min(last - key, T.int32(t.block)))
            with T.serial(0, rows // t.tile_m) as tile:
                self._tile(state, base, T.Bind(tile * t.tile_m), key, end)
        if partial is None:
            state.write(self.operands, self.batch, self.kv_head, T.int32(0), T.int32(self.problem.rows))

    def _pack_queries(self, rows: int) -> None:
        """[row, vector, lane] scaled. A last vector that is not whole is shifted back to the edge; its lanes that
        another vector holds too are zero."""
        lanes, dim = self.tiles.lanes, self.problem.workload.head_dim
        with T.serial(0, rows) as i:
            row = T.Bind(self.problem.query_row(self.batch, self.kv_head, i, dim))

            def copy(e, offset, twice: int = 0, i=i, row=row) -> None:
                value = vm.load(self.operands.q, row + offset, lanes) * vm.f32(self.problem.query_scale, lanes)
                if twice:
                    fresh = vm.at(T.int32(0), lanes) >= vm.splat(T.int32(twice), lanes)
                    value = T.Select(fresh, value, vm.f32(0.0, lanes))
                vm.store(self.queries, (i * self.vectors + e) * lanes, value, lanes)

            whole = dim // lanes
            with T.serial(0, whole) as e:
                copy(e, e * lanes)
            if dim % lanes:
                copy(whole, dim - lanes, twice=lanes - dim % lanes)

    def _tile(self, state: OnlineRows, base, row, key, end) -> None:
        t, lanes = self.tiles, self.tiles.lanes
        free = [T.Bind(e) for e in self.problem.visible_to_all(row, t.tile_m)]
        with T.serial(0, T.floordiv(end + (self.tile_n - 1), self.tile_n)) as step:
            self._dots(row, key, T.Bind(T.min(step * self.tile_n, T.max(end - self.tile_n, T.int32(0)))))
        used = T.Bind(T.floordiv(end + (lanes - 1), lanes))
        with T.serial(0, used) as jt:
            self._cap(jt)
            # Keys of the last vector beyond the block hold no score.
            parts.hide(t, self.scores, row, key, jt, free[0], free[1], key + end)
        alpha = state.exponentiate(self.scores, base + row, T.int32(0), used)
        values = parts.values_in_place(t, self.operands.v, self.batch, self.kv_head, key)
        state.accumulate(self.scores, base + row, T.int32(0), end, alpha, values)

    def _dots(self, row, key, start) -> None:
        """scores[tile_m, start .. start + tile_n): the products' lanes are summed at the end."""
        t, lanes, dim = self.tiles, self.tiles.lanes, self.problem.workload.head_dim
        cells = [(i, j, (i * self.tile_n + j) * lanes) for i in range(t.tile_m) for j in range(self.tile_n)]
        acc = local(len(cells) * lanes)
        for _, _, cell in cells:
            vm.store(acc, cell, vm.f32(0.0, lanes), lanes)
        limit = T.int32(self.problem.workload.seq_kv - 1)
        rows = [
            T.Bind(self.problem.key_row(self.batch, self.kv_head, T.min(key + start + j, limit), dim))
            for j in range(self.tile_n)
        ]

        def step(e, offset) -> None:
            keys = [T.Bind(vm.load(self.operands.k, r + offset, lanes)) for r in rows]
            for i in range(t.tile_m):
                query = T.Bind(vm.load(self.queries, ((row + i) * self.vectors + e) * lanes, lanes))
                for j, vector in enumerate(keys):
                    cell = (i * self.tile_n + j) * lanes
                    vm.store(acc, cell, vm.load(acc, cell, lanes) + query * vector, lanes)

        whole = dim // lanes
        with T.serial(0, whole) as e:
            step(e, e * lanes)
        if dim % lanes:
            step(whole, dim - lanes)
        for i, j, cell in cells:
            vm.store(self.scores, i * t.pitch + start + j, vm.lanes_sum(vm.load(acc, cell, lanes), lanes), 1)

    def _cap(self, vector) -> None:
        t, lanes = self.tiles, self.tiles.lanes
        if self.problem.workload.softcap > 0:
            for i in range(t.tile_m):
                at = i * t.pitch + vector * lanes
                capped = vm.tanh(vm.load(self.scores, at, lanes), lanes) * vm.f32(self.problem.capped_scale, lanes)
                vm.store(self.scores, at, capped, lanes)


def _combine(tiles: Tiles, operands: Operands, partial: OnlineRows, count: int, head) -> None:
    """Adds the pieces of a KV head's rows, each scaled by 2^(its maximum - the largest)."""
    lanes, rows, problem = tiles.lanes, _padded_rows(tiles), tiles.problem
    total = OnlineRows(tiles, 1)
    batch = T.Bind(T.floordiv(head, problem.workload.heads_kv))
    kv_head = T.Bind(T.floormod(head, problem.workload.heads_kv))
    with T.serial(0, problem.rows) as i:
        total.clear(1, 0)
        with T.serial(0, count) as s:
            T.buffer_store(total.row_max, T.max(total.row_max[0], partial.row_max[(head * count + s) * rows + i]), [0])
        with T.serial(0, count) as s:
            at = T.Bind((head * count + s) * rows + i)
            factor = T.Bind(vm.exp2_nonpositive(partial.row_max[at] - total.row_max[0], 1))
            T.buffer_store(total.row_sum, total.row_sum[0] + factor * partial.row_sum[at], [0])
            with T.serial(0, total.width // lanes) as e:
                piece = vm.load(partial.sums, partial.at(at, 0) + e * lanes, lanes)
                old = vm.load(total.sums, e * lanes, lanes)
                vm.store(total.sums, e * lanes, old + piece * vm.splat(factor, lanes), lanes)
        total.write(operands, batch, kv_head, i, 1)
