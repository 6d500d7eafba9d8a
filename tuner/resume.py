"""The state of a task's search, made from committed records alone: what a runner that died knew is not needed."""

from collections.abc import Collection, Mapping, Sequence

from search_space.candidate import Candidate
from search_space.sketch import Sketch, Space
from tuner.dataset import Featuriser
from tuner.presets import Preset
from tuner.roofs import Roofs
from tuner.search.openers import openers
from tuner.search.sampler import SpaceSampler
from tuner.search.state import SearchState
from tuner.task import Task, TuningRecord


def resume(
    task: Task,
    spaces: Sequence[Space],
    records: Sequence[TuningRecord],
    related: Sequence[TuningRecord],
    preset: Preset,
    *,
    sketches: Mapping[str, Sketch],
    roofs: Roofs | None = None,
    only: Collection[Candidate] | None = None,
) -> SearchState:
    """A state that proposes none of `records` again and knows their best; with no records, the first state.

    `related` are records of the same op and target kind from other tasks and jobs; those that are among `records`
    do no harm. `only` narrows the search to these candidates (SpaceSampler). ValueError when there is no space.
    """
    if not spaces:
        raise ValueError(f"no sketch can do {task.workload.to_json()} on {task.target.kind}")
    samplers = tuple(SpaceSampler(space, preset.sampling, only) for space in spaces)
    known = {**sketches, **{space.sketch.name: space.sketch for space in spaces}}
    return SearchState(
        task=task,
        preset=preset,
        samplers=samplers,
        featuriser=Featuriser(known, task.target, roofs),
        openers=openers(samplers, task, related, preset.evolution.transfer),
        proposed=frozenset(record.candidate for record in records),
        records=tuple(records),
    )
