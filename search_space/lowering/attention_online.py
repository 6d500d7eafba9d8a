"""The state of the online softmax (Milakov and Gimelshein, arXiv:1805.02867) of some rows, and its steps as TIR."""

from tvm.script.ir_builder import tirx as T

from search_space.lowering import attention_tiles as parts
from search_space.lowering import vector_math as vm
from search_space.lowering.attention_problem import NO_MAXIMUM, Operands, local, scratch
from search_space.lowering.attention_tiles import Tiles


class OnlineRows:
    """Running maximum (base 2), sum of exponentials and output of `rows` rows.

    `sums` is [row, column tile, tile_v]: each column tile has columns of its own, so that those which the shifted last
    tile computes twice are not added twice.
    """

    def __init__(self, tiles: Tiles, rows: int) -> None:
        self.tiles = tiles
        self.row_max, self.row_sum = scratch(rows), scratch(rows)
        self.sums = scratch(rows * self.width)

    @property
    def width(self) -> int:
        return self.tiles.columns * self.tiles.tile_v

    def clear(self, rows, first=0) -> None:
        lanes = self.tiles.lanes
        with T.serial(0, rows) as i:
            T.buffer_store(self.row_max, T.float32(NO_MAXIMUM), [first + i])
            T.buffer_store(self.row_sum, T.float32(0.0), [first + i])
        with T.serial(0, rows * (self.width // lanes)) as e:
            vm.store(self.sums, first * self.width + e * lanes, vm.f32(0.0, lanes), lanes)

    def exponentiate(self, scores, row, begin, end):
        """Turns scores[tile_m, vectors begin .. end) into weights; returns what the tile's old sums are scaled by."""
        alpha = local(self.tiles.tile_m)
        with T.serial(0, self.tiles.tile_m) as i:
            old = T.Bind(self.row_max[row + i])
            new = T.Bind(T.max(old, parts.row_maximum(self.tiles, scores, i, begin, end)))
            factor = T.Bind(vm.exp2_nonpositive(old - new, 1))
            total = parts.exponentiate_row(self.tiles, scores, i, begin, end, new)
            T.buffer_store(self.row_max, new, [row + i])
            T.buffer_store(self.row_sum, self.row_sum[row + i] * factor + total, [row + i])
            T.buffer_store(alpha, factor, [i])
        return alpha

    def accumulate(self, scores, row, begin, end, alpha, values) -> None:
        """sums[row ...] = alpha * sums + weights . V over keys [begin, end) of the block; `values(column tile)` is the
        loader that output_tile takes."""
        t, lanes = self.tiles, self.tiles.lanes
        with T.serial(0, t.columns) as vo:
            acc = local(t.tile_m * t.tile_v)
            cells = [(i, c, i * t.tile_v + c) for i in range(t.tile_m) for c in range(0, t.tile_v, lanes)]
            for i, c, cell in cells:
                old = vm.load(self.sums, self.at(row + i, vo) + c, lanes)
                vm.store(acc, cell, old * vm.splat(alpha[i], lanes), lanes)
            parts.output_tile(t, scores, values(vo), acc, begin, end)
            for i, c, cell in cells:
                vm.store(self.sums, self.at(row + i, vo) + c, vm.load(acc, cell, lanes), lanes)

    def at(self, row, vo):
        return (row * self.tiles.columns + vo) * self.tiles.tile_v

    def write(self, operands: Operands, batch, kv_head, first_row, count) -> None:
        """Divides by the row sums; a row that saw no key is 0, its log-sum-exp -inf."""
        problem = self.tiles.problem
        with T.serial(0, count) as i:
            total = T.Bind(self.row_sum[i])
            to = T.Bind(problem.query_row(batch, kv_head, first_row + i, problem.workload.head_dim_v))
            source = lambda vo: self.at(i, vo)  # noqa: E731
            parts.write_row(self.tiles, operands.o, to, self.sums, source, T.Bind(parts.inverse(total)))
            parts.write_lse(problem, operands.lse, (batch, kv_head, first_row + i), self.row_max[i], total)
