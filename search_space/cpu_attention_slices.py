"""What the attention sketches share whose tasks are slices of the query rows of one KV head, in register tiles."""

from abc import abstractmethod
from typing import ClassVar

from search_space.attention import AttentionWorkload
from search_space.cpu_attention import (
    CpuAttentionSketch,
    Geometry,
    as_attention,
    column_tiles,
    row_tiles,
    tile_registers,
    tile_traffic,
    tile_violation,
    vector_multiples,
)
from search_space.cpu_model import ceil_div, round_up, vector_unit
from search_space.knob import Knob, Knobs
from search_space.sketch import Constraint, Resources, Traffic
from search_space.target import Target
from search_space.workload import Workload

BLOCKS_M = (16, 32, 64, 128, 256, 512)
UNROLLS = (1, 2, 4)
_DEFAULT_L2 = 512 * 1024


def slice_rows(w: AttentionWorkload, knobs: Knobs) -> int:
    """Query rows of a task: whole query tiles."""
    rows = w.heads_q // w.heads_kv * w.seq_q
    return round_up(min(int(knobs["block_m"]), rows), int(knobs["tile_m"]))


def slices(w: AttentionWorkload, knobs: Knobs) -> int:
    """Tasks of one KV head."""
    return ceil_div(w.heads_q // w.heads_kv * w.seq_q, slice_rows(w, knobs))


def tile_knobs(w: AttentionWorkload, g: Geometry) -> tuple[Knob, ...]:
    """The register tiles of both products."""
    lanes = g.unit.lanes
    return (
        Knob("tile_m", row_tiles(g.rows), "query rows of a register tile"),
        Knob("tile_n", vector_multiples(lanes, w.seq_kv), "keys of a register tile of scores"),
        Knob("tile_v", column_tiles(lanes, w.head_dim_v), "value columns of a register tile of the output"),
    )


def _tiles(knobs: Knobs) -> tuple[int, int, int]:
    return int(knobs["tile_m"]), int(knobs["tile_n"]), int(knobs["tile_v"])


class SlicedAttentionSketch(CpuAttentionSketch):
    """Base of those sketches: a task's temporaries may take `workspace_in_l2` times the L2 cache."""

    workspace_in_l2: ClassVar[int]
    workspace_holds: ClassVar[str]

    @abstractmethod
    def workspace(self, w: AttentionWorkload, knobs: Knobs) -> int:
        """Bytes of the temporaries of one task."""

    def workspace_limit(self, target: Target) -> int:
        return self.workspace_in_l2 * (target.l2_bytes or _DEFAULT_L2)

    def violated(self, workload: Workload, target: Target, knobs: Knobs) -> Constraint | None:
        w = as_attention(workload)
        unroll, pack_v = int(knobs["unroll"]), bool(knobs["pack_v"])
        broken = tile_violation(w, vector_unit(target), *_tiles(knobs), unroll, pack_v)
        if broken is None and self.workspace(w, knobs) > self.workspace_limit(target):
            reason = f"{self.workspace_holds} must fit {self.workspace_in_l2} times the L2 cache"
            return Constraint("workspace", reason)
        return broken

    def resources(self, workload: Workload, target: Target, knobs: Knobs) -> Resources:
        w, g = as_attention(workload), Geometry.of(as_attention(workload), target)
        tile_m, *widths = _tiles(knobs)
        return Resources(
            registers=max(tile_registers(tile_m, n, g.unit) for n in widths),
            threads=g.heads * slices(w, knobs),
            workspace_bytes=self.workspace(w, knobs),
        )

    def traffic(self, workload: Workload, target: Target, knobs: Knobs) -> Traffic:
        w = as_attention(workload)
        return tile_traffic(w, target, slices(w, knobs), *_tiles(knobs))
