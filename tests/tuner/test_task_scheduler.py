import dataclasses

import numpy as np
import pytest

from tuner.presets import SchedulerConfig
from tuner.task_scheduler import TaskProgress, gradient, next_task

CONFIG = SchedulerConfig(alpha=0.2, beta=2.0, window=4, warmup_trials=8, epsilon=0.0)


def progress(index: int, history: tuple[float | None, ...], **fields: object) -> TaskProgress:
    base = TaskProgress(index, 1.0, 1e9, len(history), history, group=str(index))
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_equation_of_a_lone_task():
    t = progress(0, (9.0, 8.0, 8.0, 8.0, 6.0, 6.0, 5.0, 4.0), weight=3.0)
    slope = (4.0 - 8.0) / 4
    assert gradient(t, [t], CONFIG) == pytest.approx(3.0 * (0.2 * slope + 0.8 * (-4.0 / 8)))


def test_similar_tasks_bound_what_is_hoped_for():
    """A twin at four times the throughput: hope for half of that at best (beta = 2), which is more than g / t."""
    slow = progress(0, (4.0,) * 8, group="g", flops=1e9)
    twin = progress(1, (1.0,) * 8, group="g", flops=1e9)
    hoped = 2.0 * 1e9 / 1e9 - 4.0
    assert gradient(slow, [slow, twin], CONFIG) == pytest.approx(0.8 * hoped)
    assert gradient(twin, [slow, twin], CONFIG) == pytest.approx(0.8 * (-1.0 / 8))  # not above -g / t
    stranger = dataclasses.replace(twin, group="h")
    assert gradient(slow, [slow, stranger], CONFIG) == pytest.approx(0.8 * (-4.0 / 8))


def test_every_task_is_warmed_up_in_turns():
    tasks = [progress(i, ()) for i in range(3)]
    order = []
    for _ in range(6):
        i = next_task(tasks, CONFIG, rng())
        assert i is not None
        order.append(i)
        tasks[i] = progress(i, tuple([1.0] * (tasks[i].trials + 4)))
    assert order == [0, 1, 2, 0, 1, 2]


def test_the_heavier_and_the_improving_come_first():
    flat = (1.0,) * 16
    assert next_task([progress(0, flat), progress(1, flat, weight=5.0)], CONFIG, rng()) == 1
    improving = (*(3.0,) * 12, 2.5, 2.0, 1.5, 1.0)
    assert next_task([progress(0, flat), progress(1, improving)], CONFIG, rng()) == 1


def test_finished_tasks_get_nothing_and_all_finished_is_the_end():
    flat = (1.0,) * 16
    tasks = [progress(0, flat, weight=100.0, finished=True), progress(1, flat)]
    assert next_task(tasks, CONFIG, rng()) == 1
    assert next_task([dataclasses.replace(t, finished=True) for t in tasks], CONFIG, rng()) is None
    assert next_task([], CONFIG, rng()) is None


def test_a_task_without_a_valid_candidate_neither_starves_the_others_nor_is_forgotten():
    """Alternating turns with a flat task as heavy: each gets between a fifth and four fifths."""
    tasks = [progress(0, (None,) * 8), progress(1, (1.0,) * 8)]
    turns = [0, 0]
    for _ in range(40):
        i = next_task(tasks, CONFIG, rng())
        assert i is not None
        turns[i] += 1
        best = None if i == 0 else 1.0
        tasks[i] = progress(i, (*tasks[i].history, *(best,) * 4))
    assert min(turns) >= 8


def test_no_task_has_a_valid_candidate():
    tasks = [progress(0, (None,) * 12), progress(1, (None,) * 8)]
    assert next_task(tasks, CONFIG, rng()) == 1


def test_weights_and_room_decide_over_a_whole_job():
    """Latency 1 + room / t: four tasks, 96 batches of 4; the trials follow weight and room."""
    weights, room = (1.0, 8.0, 1.0, 1.0), (4.0, 4.0, 4.0, 40.0)
    tasks = [progress(i, (), weight=weights[i]) for i in range(4)]
    source = rng(1)
    for _ in range(96):
        i = next_task(tasks, SchedulerConfig(warmup_trials=8, window=8), source)
        assert i is not None
        n = tasks[i].trials + 4
        tasks[i] = progress(i, tuple(1.0 + room[i] / t for t in range(1, n + 1)), weight=weights[i])
    trials = [t.trials for t in tasks]
    assert sum(trials) == 96 * 4
    assert trials[1] > 1.5 * trials[0]
    assert trials[3] > 1.2 * trials[0]
    assert trials[1] == max(trials)
    assert min(trials) >= 8


def test_some_turns_are_random_and_seeded():
    tasks = [progress(0, (1.0,) * 16, weight=100.0), progress(1, (1.0,) * 16)]
    config = dataclasses.replace(CONFIG, epsilon=0.25)

    def picks(seed: int) -> list[int | None]:
        source = rng(seed)
        return [next_task(tasks, config, source) for _ in range(200)]

    assert picks(3) == picks(3)
    assert 10 <= picks(3).count(1) <= 40  # 25 expected
    assert [next_task(tasks, CONFIG, rng(s)) for s in range(20)] == [0] * 20
