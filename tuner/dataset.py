"""From committed records to what the cost model learns: features, scores within a task, and failures as failures."""

from collections.abc import Iterable, Mapping, Sequence

from cost_model.dataset import Row
from cost_model.features import Rates, TaskContext
from cost_model.model import CostModel, Predictions
from search_space.candidate import Candidate
from search_space.sketch import Sketch
from search_space.target import Target
from search_space.workload import Workload
from tuner.outcome import Outcome
from tuner.roofs import Roofs
from tuner.task import TuningRecord, score


class Featuriser:
    """Features of candidates; those of records are kept, since every refit asks for them again.

    `sketches`: name -> sketch; a candidate of an unknown sketch or of another version has no features, for its knobs
    now mean another program. `roofs` are those of `target`; other machines' rates are not known here.
    """

    def __init__(self, sketches: Mapping[str, Sketch], target: Target, roofs: Roofs | None) -> None:
        self._sketches = sketches
        self._target = target
        self._roofs = roofs
        self._contexts: dict[tuple[Workload, Target], TaskContext] = {}
        self._kept: dict[tuple[Workload, Target, Candidate], Mapping[str, float]] = {}

    def of(self, candidate: Candidate, workload: Workload, target: Target) -> Mapping[str, float] | None:
        sketch = self._sketch(candidate)
        return None if sketch is None else self._context(workload, target).featurise(sketch, candidate.knobs)

    def predict(
        self, model: CostModel, candidates: Sequence[Candidate], workload: Workload, target: Target
    ) -> Predictions:
        """What a trained `model` says of candidates of one task; KeyError for one of an unknown sketch."""
        context = self._context(workload, target)
        rows = []
        for candidate in candidates:
            sketch = self._sketch(candidate)
            if sketch is None:
                raise KeyError(candidate.sketch)
            rows.append(context.own(sketch, candidate.knobs))
        return model.predict(rows, context.shared)

    def _sketch(self, candidate: Candidate) -> Sketch | None:
        sketch = self._sketches.get(candidate.sketch)
        return sketch if sketch is not None and sketch.version == candidate.version else None

    def of_record(self, record: TuningRecord) -> Mapping[str, float] | None:
        task = record.task
        key = (task.workload, task.target, record.candidate)
        if key not in self._kept:
            features = self.of(record.candidate, task.workload, task.target)
            if features is None:
                return None
            self._kept[key] = features
        return self._kept[key]

    def _context(self, workload: Workload, target: Target) -> TaskContext:
        if (workload, target) not in self._contexts:
            rates = None
            if self._roofs is not None and target == self._target:
                rates = Rates(*self._roofs.rates(workload))
            self._contexts[workload, target] = TaskContext.of(workload, target, rates)
        return self._contexts[workload, target]


def training_rows(records: Iterable[TuningRecord], featuriser: Featuriser) -> list[Row]:
    """One row a record, in order. Records of one task under one environment identity form a group, for times taken
    under another driver or policy cannot be compared. A lost worker's record teaches nothing."""
    usable = [r for r in records if r.measurement.outcome is not Outcome.WORKER_LOST]
    best = best_latencies(usable)
    rows = []
    for record in usable:
        features = featuriser.of_record(record)
        group = group_of(record)
        if features is not None:
            value = score(record, best[group]) if group in best else None
            rows.append(Row(features, value, group))
    return rows


def group_of(record: TuningRecord) -> str:
    identity = record.measurement.identity
    return f"{record.task.key}@{identity.key if identity else ''}"


def best_latencies(records: Sequence[TuningRecord]) -> dict[str, float]:
    """group -> best latency in seconds; a group without a valid record is not in it."""
    best: dict[str, float] = {}
    for record in records:
        latency = record.measurement.latency_s
        if latency is not None:
            group = group_of(record)
            best[group] = min(latency, best.get(group, latency))
    return best
