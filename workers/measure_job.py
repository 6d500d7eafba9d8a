"""A candidate on its way through a session."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from search_space.candidate import Candidate
from tuner.ports import Trial
from workers.build import BuildResult


@dataclass(frozen=True)
class MeasureJob:
    """`epoch`: the session's when it was submitted; a cancel ends an epoch and what belongs to it."""

    candidate: Candidate
    ordinal: int | None
    epoch: int
    trial: Trial | None = None
    best_latency_s: float | None = None


def jobs_of(ended: Iterable[tuple[object, BuildResult]]) -> Iterator[tuple[MeasureJob, BuildResult]]:
    for job, result in ended:
        assert isinstance(job, MeasureJob)
        yield job, result
