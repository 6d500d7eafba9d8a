"""Which of a job's tasks gets the next batch: Ansor's gradient task scheduler (arXiv:2006.06762 section 6).

Notation: g_i(t) best latency of task i after t trials, w_i its weight, C_i its FLOPs, V_k = C_k / g_k the throughput
reached on task k, N(i) the tasks similar to i. The objective is f = sum_i w_i g_i, so df/dg_i = w_i, and

    df/dt_i ~ w_i (alpha (g_i(t_i) - g_i(t_i - dt)) / dt
                   + (1 - alpha) min(-g_i(t_i) / t_i, beta C_i / max_{k in N(i)} V_k - g_i(t_i)))

The first term is the slope of the recent past; the second an optimistic guess (the latency could fall to 0 in another
t_i trials) bounded by what similar tasks reached. The task with the largest |df/dt_i| is next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.presets import SchedulerConfig


@dataclass(frozen=True)
class TaskProgress:
    """`trials` were handed out, `history` holds the best latency in seconds after each measured one (None before the
    first valid). `group`: tasks of one group are similar (N(i)). `index` is the task's place in the job."""

    index: int
    weight: float
    flops: float
    trials: int
    history: tuple[float | None, ...]
    group: str = ""
    finished: bool = False

    @property
    def best(self) -> float | None:
        return self.history[-1] if self.history else None


def next_task(tasks: Sequence[TaskProgress], config: SchedulerConfig, rng: np.random.Generator) -> int | None:
    """The `index` of the task to serve next; None when all are finished. Ties go to the fewer trials, then the lower
    index; deterministic for equal arguments."""
    open_tasks = [t for t in tasks if not t.finished]
    if not open_tasks:
        return None
    cold = [t for t in open_tasks if t.trials < config.warmup_trials or not t.history]
    if cold or all(t.best is None for t in tasks):
        return min(cold or open_tasks, key=lambda t: (t.trials, t.index)).index
    if rng.random() < config.epsilon:
        return open_tasks[int(rng.integers(len(open_tasks)))].index
    gains = {t.index: abs(gradient(t, tasks, config)) for t in open_tasks}
    return min(open_tasks, key=lambda t: (-gains[t.index], t.trials, t.index)).index


def gradient(task: TaskProgress, tasks: Sequence[TaskProgress], config: SchedulerConfig) -> float:
    """df/dt_i, in weighted seconds per trial (at most 0). A task without a valid candidate is taken to be slow, and to
    get no faster with each further trial that fails, so that it neither starves the others nor is forgotten."""
    latency = task.best
    if latency is None:
        latency = _assumed_latency(task, tasks, config)
    forward = -latency / max(task.trials, 1)
    similar = [t for t in tasks if t.group == task.group and t.best is not None]
    if any(t.index != task.index for t in similar):
        fastest = max(_throughput(t) for t in similar)
        forward = min(forward, config.beta * task.flops / fastest - latency)
    return task.weight * (config.alpha * _slope(task, config.window) + (1.0 - config.alpha) * forward)


def _slope(task: TaskProgress, window: int) -> float:
    """(g(t) - g(t - dt)) / dt over at most `window` measured trials, from the first valid one on."""
    known = [g for g in task.history if g is not None]
    steps = min(window, len(known) - 1)
    return (known[-1] - known[-1 - steps]) / steps if steps > 0 else 0.0


def _throughput(task: TaskProgress) -> float:
    assert task.best is not None, "only tasks with a valid candidate have a throughput"
    return task.flops / task.best


def _assumed_latency(task: TaskProgress, tasks: Sequence[TaskProgress], config: SchedulerConfig) -> float:
    solved = [t for t in tasks if t.best is not None]
    like = [t for t in solved if t.group == task.group] or solved
    return config.unsolved_factor * task.flops / min(map(_throughput, like))
