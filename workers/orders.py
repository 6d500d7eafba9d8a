"""What a session asks of builders and of the device for one candidate."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from search_space.candidate import Candidate
from tuner.idle import BUILT_AT
from tuner.measurement import Measurement
from tuner.ports import MeasurePolicy, Trial
from tuner.task import Task
from workers.build import BuildResult
from workers.builder import BuildRequest
from workers.final_bed import Entrant
from workers.script import Scenario
from workers.shelf import Shelf


@dataclass(frozen=True)
class Job:
    """`epoch`: the session's when it was submitted; a cancel ends an epoch and what belongs to it."""

    candidate: Candidate
    ordinal: int | None
    epoch: int
    trial: Trial | None = None
    best_latency_s: float | None = None


class Orders:
    """`ordinals`: candidate key -> its trial's place in the job, by which a script says what the candidate does."""

    def __init__(self, task: Task, policy: MeasurePolicy, scenario: Scenario | None, shelf: Shelf) -> None:
        self._task, self._policy, self._scenario, self._shelf = task, policy, scenario, shelf
        self.ordinals: dict[str, int] = {}

    def of(self, candidate: Candidate, epoch: int) -> Job:
        """A candidate that is only to be built."""
        return Job(candidate, self.ordinals.get(candidate.key), epoch)

    def request(self, job: Job, owner: str) -> BuildRequest:
        return BuildRequest(
            self._task.workload.to_json(),
            self._task.target.to_json(),
            job.candidate.to_json(),
            self._policy.build_timeout_s,
            owner,
            self._entry(job.candidate, job.ordinal),
        )

    def entrant(self, candidate: Candidate) -> Entrant:
        """KeyError for what was not built."""
        entry = self._entry(candidate, self.ordinals.get(candidate.key))
        return Entrant(candidate.key, self._shelf.artifact_of(candidate), entry)

    def _entry(self, candidate: Candidate, ordinal: int | None) -> dict[str, object] | None:
        if self._scenario is None:
            return None
        return self._scenario.entry(self._task.workload.key, candidate, ordinal).to_json()


def jobs(ended: Iterable[tuple[object, BuildResult]]) -> Iterator[tuple[Job, BuildResult]]:
    for job, result in ended:
        assert isinstance(job, Job)
        yield job, result


def with_build(measurement: Measurement, built: BuildResult) -> Measurement:
    """The measurement with what is known of the build: how long it took, and when it was there."""
    details = {**measurement.observation.details, BUILT_AT: built.ended_at}
    observation = dataclasses.replace(measurement.observation, details=details)
    return dataclasses.replace(measurement, build_secs=built.build_secs, observation=observation)
