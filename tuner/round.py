"""The search of one task, as a runner drives it: propose, measure, observe, learn, and know when to stop.

search = TaskSearch(task, spaces, preset, seed, records=..., related=...)
while search.stop_reason(elapsed_s, max_seconds, trials_left) is None:
    search.refit()
    trials = store.reserve(lease, task_id, search.next_batch(n))
    search.reserved(trials)
    session.submit(trials, search.best_latency_s)
    for measured in session.results(timeout_s):
        store.commit(lease, task_id, measured)
        search.observe(record)
final = session.final(search.finalists())
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from cost_model.dataset import make_dataset
from cost_model.model import CostModel
from search_space.candidate import Candidate
from search_space.registry import all_sketches
from search_space.sketch import Sketch, Space
from tuner.budget import Spent, stale_trials, stop_reason
from tuner.dataset import training_rows
from tuner.job import StopReason
from tuner.ports import Trial
from tuner.presets import Preset
from tuner.promotion import finalists
from tuner.resume import resume
from tuner.roofs import Roofs
from tuner.search.propose import Proposal, propose
from tuner.search.state import distinct_trials
from tuner.task import Task, TuningRecord
from tuner.task_scheduler import TaskProgress


class TaskSearch:
    """Holds one immutable state and replaces it at each step; no IO, no clock. Not thread-safe.

    Deterministic: equal arguments and equal calls give equal proposals. `records` are the task's own committed ones
    (resume), `related` those of the same op and target kind from elsewhere, newest first, as the store hands them
    out. `model` is a stored warm one; `only` narrows the search to candidates built or recorded ahead. ValueError
    when `spaces` is empty.
    """

    def __init__(
        self,
        task: Task,
        spaces: Sequence[Space],
        preset: Preset,
        seed: int,
        *,
        roofs: Roofs | None = None,
        records: Sequence[TuningRecord] = (),
        related: Sequence[TuningRecord] = (),
        model: CostModel | None = None,
        sketches: Mapping[str, Sketch] | None = None,
        only: Collection[Candidate] | None = None,
    ) -> None:
        known = all_sketches() if sketches is None else sketches
        self.state = resume(task, spaces, records, related, preset, sketches=known, roofs=roofs, only=only)
        self.preset = preset
        self.model = model or CostModel(preset.model)
        self._related = tuple(reversed(related))  # oldest first: the newest rows survive the model's cap
        self._roofline_s = roofs.time_s(task.workload)[0] if roofs else None
        self._rng = np.random.default_rng([seed, len(records)])
        self._barren = False
        self._learnt: int | None = None

    def next_batch(self, n: int | None = None) -> list[Proposal]:
        """At most n (default: the preset's batch) candidates with their predicted score, for `reserve`; none is ever
        handed out twice. Empty only when the space is exhausted."""
        wanted = self.preset.batch_size if n is None else n
        batch = propose(self.state, wanted, self.model, self._rng) if wanted > 0 else []
        self._barren = wanted > 0 and not batch
        self.state = self.state.with_proposed(candidate for candidate, _ in batch)
        return batch

    def reserved(self, trials: Sequence[Trial]) -> None:
        """Trials that the store handed out: those of a dead runner, never proposed here, are not proposed again."""
        self.state = self.state.with_proposed(trial.candidate for trial in trials)

    def observe(self, record: TuningRecord) -> None:
        self.state = self.state.with_record(record)

    def refit(self) -> bool:
        """Train a new model on all that is known; False when nothing is new, or it is too little to learn from."""
        if self._learnt == len(self.state.records):
            return False
        self._learnt = len(self.state.records)
        own = {(r.job_id, r.trial, r.attempt) for r in self.state.records}
        related = [r for r in self._related if (r.job_id, r.trial, r.attempt) not in own]
        rows = training_rows((*related, *self.state.records), self.state.featuriser)
        before = self.model
        self.model = before.fit(make_dataset(rows, before.config.max_rows))
        return self.model is not before

    def stop_reason(
        self, elapsed_s: float = 0.0, max_seconds: float | None = None, trials_left: int | None = None
    ) -> StopReason | None:
        """Why to propose nothing more; `elapsed_s`, `max_seconds`, `trials_left` are the job's. Ask again once nothing
        is in flight: late results can still turn NO_VALID_CANDIDATE into another reason, or into none."""
        records = self.state.records
        spent = Spent(
            trials=self.trials,
            valid=len(self.state.valid),
            stale=stale_trials(records, self.preset.budget.min_improvement),
            best_latency_s=self.best_latency_s,
            elapsed_s=elapsed_s,
            trials_left=trials_left,
            exhausted=self._barren or self.state.exhausted,
        )
        return stop_reason(spent, self.preset.budget, max_seconds, self._roofline_s)

    def finalists(self, k: int | None = None) -> list[Candidate]:
        """The k (default: the preset's) fastest distinct candidates, to be measured again."""
        return finalists(self.state.records, self.preset.final.finalists if k is None else k)

    def progress(self, index: int, weight: float, finished: bool = False) -> TaskProgress:
        """What the task scheduler weighs; tasks of one op, dtype and target are similar."""
        task = self.state.task
        dtypes = "/".join(operand.dtype for operand in task.workload.inputs())
        return TaskProgress(
            index=index,
            weight=weight,
            flops=float(task.workload.flops()),
            trials=len(self.state.proposed),
            history=_best_so_far(self.state.records),
            group=f"{task.workload.op}:{dtypes}:{task.target.kind}:{task.target.arch}",
            finished=finished,
        )

    @property
    def best_latency_s(self) -> float | None:
        return self.state.best_latency_s

    @property
    def trials(self) -> int:
        """Distinct candidates with a committed record."""
        return distinct_trials(self.state.records)


def _best_so_far(records: Sequence[TuningRecord]) -> tuple[float | None, ...]:
    best: float | None = None
    history = []
    for record in records:
        latency = record.measurement.latency_s
        if latency is not None and (best is None or latency < best):
            best = latency
        history.append(best)
    return tuple(history)
