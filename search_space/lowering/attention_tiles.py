"""The register-tiled pieces of CPU attention: packing, scores, masks, softmax, output.

Both products are one kernel: a tile of `tile_m` query rows by a few vectors of columns stays in registers while the
reduction runs (Goto and van de Geijn, ACM TOMS 34(3), 2008). Scores reduce over head_dim with K packed transposed,
[key tile, dim, tile_n]; outputs reduce over keys with V read in place or packed.
"""

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from search_space.cpu_model import round_up
from search_space.lowering import vector_math as vm
from search_space.lowering.attention_problem import HIDDEN, NO_MAXIMUM, Problem, local


@dataclass(frozen=True)
class Tiles:
    """`tile_m` query rows, `tile_n` keys and `tile_v` value columns a register tile; `block` keys held at once (whole
    key tiles); `unroll` steps of both reductions; `pack_v`: V is copied to float32, [column tile, key, tile_v]."""

    problem: Problem
    tile_m: int
    tile_n: int
    tile_v: int
    block: int
    unroll: int
    pack_v: bool

    @property
    def lanes(self) -> int:
        return self.problem.lanes

    @property
    def dim(self) -> int:
        """head_dim, padded to whole unrolled steps with zeros."""
        return round_up(self.problem.workload.head_dim, self.unroll)

    @property
    def columns(self) -> int:
        """Tiles of value columns; the last one is shifted back to end at the edge, and computes some columns twice."""
        return -(-self.problem.workload.head_dim_v // self.tile_v)

    @property
    def pitch(self) -> int:
        """Elements from one row of scores to the next: not a power of two, which would share sets of the L1 cache."""
        return self.block + self.lanes

    def column(self, tile):
        """First value column of a tile."""
        return T.max(T.min(tile * self.tile_v, T.int32(self.problem.workload.head_dim_v - self.tile_v)), T.int32(0))


def pack_queries(tiles: Tiles, source, target, batch, kv_head, first_row, count) -> None:
    """Rows [first_row, first_row + count) as float32 [row, dim], scaled; rows past the end repeat the last."""
    problem, lanes = tiles.problem, tiles.lanes
    dim, scale = problem.workload.head_dim, problem.query_scale
    with T.serial(0, count) as i:
        row = T.Bind(problem.query_row(batch, kv_head, first_row + i, dim))

        def copy(d, width: int) -> None:
            vm.store(target, i * tiles.dim + d, vm.load(source, row + d, width) * vm.f32(scale, width), width)

        for_each_vector(dim, lanes, copy)
        for d in range(dim, tiles.dim):
            vm.store(target, i * tiles.dim + d, vm.f32(0.0), 1)


def for_each_vector(extent: int, lanes: int, emit) -> None:
    """emit(offset, width) over whole vectors, then over the scalars that remain."""
    whole = extent // lanes
    if whole:
        with T.serial(0, whole) as step:
            emit(step * lanes, lanes)
    if extent % lanes:
        with T.serial(whole * lanes, extent) as d:
            emit(d, 1)


def pack_keys(tiles: Tiles, source, target, batch, kv_head, first_key, count) -> None:
    """`count` key tiles from key `first_key` on, transposed to [key tile, dim, tile_n]; keys past the end repeat the
    last one (the mask hides them)."""
    w, nr, lanes = tiles.problem.workload, tiles.tile_n, tiles.lanes
    with T.serial(0, count) as jt:
        for c in range(0, nr, lanes):
            keys = [T.min(first_key + jt * nr + (c + j), T.int32(w.seq_kv - 1)) for j in range(lanes)]
            rows = [T.Bind(tiles.problem.key_row(batch, kv_head, key, w.head_dim)) for key in keys]

            def copy(d, width: int, rows=rows, c=c, jt=jt) -> None:
                to = T.Bind((jt * tiles.dim + d) * nr + c)
                if width == 1:
                    for j, row in enumerate(rows):
                        vm.store(target, to + j, vm.load(source, row + d, 1), 1)
                    return
                square = vm.transpose([T.Bind(vm.load(source, row + d, lanes)) for row in rows], lanes)
                for e, vector in enumerate(square):
                    vm.store(target, to + e * nr, vector, lanes)

            for_each_vector(w.head_dim, lanes, copy)
            for d in range(w.head_dim, tiles.dim):
                vm.store(target, (jt * tiles.dim + d) * nr + c, vm.f32(0.0, lanes), lanes)


def pack_values(tiles: Tiles, source, target, batch, kv_head, first_key, count) -> None:
    """`count` keys from `first_key` on as float32 [column tile, key, tile_v]; keys past the end repeat the last one,
    columns past the end are zero."""
    w, nv, lanes = tiles.problem.workload, tiles.tile_v, tiles.lanes
    with T.serial(0, tiles.columns) as vo, T.serial(0, count) as j:
        key = T.min(first_key + j, T.int32(w.seq_kv - 1))
        row = T.Bind(tiles.problem.key_row(batch, kv_head, key, w.head_dim_v))
        to = T.Bind((vo * tiles.block + j) * nv)
        if w.head_dim_v >= nv:
            for c in range(0, nv, lanes):
                vm.store(target, to + c, vm.load(source, row + tiles.column(vo) + c, lanes), lanes)
        else:
            for c in range(nv):
                value = vm.load(source, row + c, 1) if c < w.head_dim_v else vm.f32(0.0)
                vm.store(target, to + c, value, 1)


def score_tile(tiles: Tiles, queries, keys, scores, key_tile) -> None:
    """scores[tile_m, key_tile * tile_n ...] = queries . keys in base 2. `queries` is a function of (row, d)."""
    mr, nr, lanes = tiles.tile_m, tiles.tile_n, tiles.lanes
    acc = local(mr * nr)
    for e in range(0, mr * nr, lanes):
        vm.store(acc, e, vm.f32(0.0, lanes), lanes)
    with T.serial(0, tiles.dim // tiles.unroll) as step:
        for u in range(tiles.unroll):
            d = step * tiles.unroll + u
            vectors = [T.Bind(vm.load(keys, (key_tile * tiles.dim + d) * nr + c, lanes)) for c in range(0, nr, lanes)]
            multiply_add(acc, [queries(i, d) for i in range(mr)], vectors, lanes)
    for i in range(mr):
        for c in range(0, nr, lanes):
            value = vm.load(acc, i * nr + c, lanes)
            if tiles.problem.workload.softcap > 0:
                value = vm.tanh(value, lanes) * vm.f32(tiles.problem.capped_scale, lanes)
            vm.store(scores, i * tiles.pitch + key_tile * nr + c, value, lanes)


def multiply_add(acc, scalars, vectors, lanes: int) -> None:
    """acc[i, c] += scalars[i] * vectors[c]: the rank-1 update of a register tile."""
    for i, scalar in enumerate(scalars):
        factor = T.Bind(vm.splat(scalar, lanes))
        for c, vector in enumerate(vectors):
            at = (i * len(vectors) + c) * lanes
            vm.store(acc, at, vm.load(acc, at, lanes) + factor * vector, lanes)


def hide(tiles: Tiles, scores, first_row, first_key, key_tile, free_first, free_last, end=None) -> None:
    """Masks one tile of scores, if it holds keys outside [free_first, free_last), which every row sees; keys from `end`
    on are hidden from all rows."""
    problem, nr, lanes = tiles.problem, tiles.tile_n, tiles.lanes
    start = T.Bind(first_key + key_tile * nr)
    outside = start + nr > (free_last if end is None else T.min(free_last, end))
    if problem.workload.window_left >= 0:
        outside = T.Or(outside, start < free_first)
    with T.If(outside), T.Then(), T.serial(0, tiles.tile_m) as i:
        first, last = problem.visible(problem.query_of(first_row + i))
        first, last = T.Bind(first), T.Bind(last if end is None else T.min(last, end))
        for c in range(0, nr, lanes):
            key = vm.at(start + c, lanes)
            shown = key < vm.splat(last, lanes)
            if problem.workload.window_left >= 0:
                shown = T.And(shown, key >= vm.splat(first, lanes))
            offset = i * tiles.pitch + key_tile * nr + c
            vm.store(scores, offset, T.Select(shown, vm.load(scores, offset, lanes), vm.f32(HIDDEN, lanes)), lanes)


def row_maximum(tiles: Tiles, scores, row, begin, end):
    """The largest of scores[row, vectors begin .. end), NO_MAXIMUM at least."""
    lanes = tiles.lanes
    best = local(lanes)
    vm.store(best, 0, vm.f32(NO_MAXIMUM, lanes), lanes)
    with T.serial(begin, end) as j:
        value = vm.load(scores, row * tiles.pitch + j * lanes, lanes)
        vm.store(best, 0, T.max(vm.load(best, 0, lanes), value), lanes)
    return T.Bind(vm.lanes_max(vm.load(best, 0, lanes), lanes))


def exponentiate_row(tiles: Tiles, scores, row, begin, end, maximum):
    """scores[row] becomes 2^(score - maximum) over vectors begin .. end; returns the sum."""
    lanes = tiles.lanes
    total = local(lanes)
    vm.store(total, 0, vm.f32(0.0, lanes), lanes)
    with T.serial(begin, end) as j:
        offset = T.Bind(row * tiles.pitch + j * lanes)
        y = vm.load(scores, offset, lanes) - vm.splat(maximum, lanes)
        p = T.Bind(vm.exp2_nonpositive(y, lanes))
        vm.store(scores, offset, p, lanes)
        vm.store(total, 0, vm.load(total, 0, lanes) + p, lanes)
    return T.Bind(vm.lanes_sum(vm.load(total, 0, lanes), lanes))


def output_tile(tiles: Tiles, scores, values, acc, begin, end) -> None:
    """acc[tile_m, tile_v] += scores . values over keys [begin, end) of the block, both whole unrolled steps.

    `values` is a function of (key of the block, column within the tile) that loads a vector."""
    mr, nv, lanes = tiles.tile_m, tiles.tile_v, tiles.lanes
    with T.serial(T.floordiv(begin, tiles.unroll), T.floordiv(end, tiles.unroll)) as step:
        for u in range(tiles.unroll):
            j = step * tiles.unroll + u
            vectors = [T.Bind(values(j, c)) for c in range(0, nv, lanes)]
            weights = [vm.load(scores, i * tiles.pitch + j, 1) for i in range(mr)]
            multiply_add(acc, weights, vectors, lanes)


def write_row(tiles: Tiles, out, to, sums, start, factor) -> None:
    """One row of the output from its column tiles: out[to + column] = sums[start(tile) + c] * factor."""
    w, nv, lanes = tiles.problem.workload, tiles.tile_v, tiles.lanes
    with T.serial(0, tiles.columns) as vo:
        source = T.Bind(start(vo))
        if w.head_dim_v >= nv:
            for c in range(0, nv, lanes):
                value = vm.load(sums, source + c, lanes) * vm.splat(factor, lanes)
                vm.store(out, to + tiles.column(vo) + c, value, lanes)
        else:
            for c in range(w.head_dim_v):
                vm.store(out, to + c, vm.load(sums, source + c, 1) * factor, 1)


def inverse(total):
    """1 / total, or 0 for a row that saw no key."""
    return T.Select(total > T.float32(0.0), T.float32(1.0) / total, T.float32(0.0))


def values_in_place(tiles: Tiles, source, batch, kv_head, first_key):
    """The loader of V for output_tile, straight from the operand; keys count from `first_key`."""
    dim = tiles.problem.workload.head_dim_v
    step = tiles.problem.key_pitch(dim)

    def of_column(vo):
        start = T.Bind(tiles.problem.key_row(batch, kv_head, first_key, dim) + tiles.column(vo))
        return lambda j, c: vm.load(source, start + T.cast(j, "int64") * step + c, tiles.lanes)

    return of_column


def values_packed(tiles: Tiles, packed):
    """The loader of V for output_tile from what pack_values wrote."""
    return lambda vo: lambda j, c: vm.load(packed, (vo * tiles.block + j) * tiles.tile_v + c, tiles.lanes)


def write_lse(problem: Problem, lse, row, maximum, total) -> None:
    """ln of the row's sum of exponentials, -inf where no key was seen; nothing unless the workload wants it."""
    if lse is None:
        return
    value = maximum * T.float32(vm.LN_2) + vm.natural_log(T.max(total, T.float32(1e-30)))
    value = T.Select(total > T.float32(0.0), value, T.float32(float("-inf")))
    T.buffer_store(lse, value, [problem.lse_row(*row)])
