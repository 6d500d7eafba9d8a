"""Every constant of the search, in frozen dataclasses with named presets. Counts are candidates unless said."""

import dataclasses
from dataclasses import dataclass, field

from cost_model.config import ModelConfig
from search_space.errors import InvalidField


@dataclass(frozen=True)
class SamplingConfig:
    """How legal points are found.

    A space whose full product is at most `enumerate_limit` points is listed exactly, so that its exhaustion is known
    and not guessed. In a larger one a new point costs at most `tries` draws, then at most `repair_steps` steps of a
    walk over its knobs; a whole request gives up after `barren_points` points in a row that brought nothing new.
    """

    enumerate_limit: int = 20_000
    tries: int = 64
    repair_steps: int = 32
    barren_points: int = 24


@dataclass(frozen=True)
class EvolutionConfig:
    """Evolution over the model's predictions (Ansor, arXiv:2006.06762 section 5.1), per sketch.

    `epsilon`: the share of a batch drawn at random (never less than one candidate once the batch has
    `random_floor` of them). `sketch_share`: the largest share of a batch's greedy part that one sketch may take while
    another has candidates of at least `diversity_floor` times the best predicted merit. `climb_share`: the part of the
    batch taken from the one-step neighbours of the `climb_from` best measured candidates, so that what the model
    misjudges next to the best is still tried. `transfer`: winners of the
    nearest related tasks that open the search, after the experts' seeds (`seeds_first`).
    """

    population: int = 192
    generations: int = 3
    elites: int = 32  # best measured candidates that join the first generation
    mutation_probability: float = 0.75  # else cross over
    extra_mutation_probability: float = 0.3  # of each further knob in the same mutation
    far_jump_probability: float = 0.2  # any value of the domain in place of a neighbour
    epsilon: float = 0.1
    random_floor: int = 8
    sketch_share: float = 0.75
    diversity_floor: float = 0.6
    climb_share: float = 0.25
    climb_from: int = 2
    transfer: int = 4
    seeds_first: bool = True


@dataclass(frozen=True)
class BudgetConfig:
    """When a task stops before the job's trials or seconds do.

    `patience`: trials without an improvement of at least `min_improvement` (relative); None goes on to the budget that
    the user gave. `near_roofline`: stop when
    roofline time / best latency reaches this; a share above `roof_trust` shows the roof to be wrong. `hopeless`:
    trials without a single valid candidate.
    """

    patience: int | None = None
    min_improvement: float = 0.005
    near_roofline: float = 0.97
    roof_trust: float = 1.05
    hopeless: int = 128


@dataclass(frozen=True)
class SchedulerConfig:
    """Ansor's gradient task scheduler; alpha, beta as in the published system's defaults (arXiv:2006.06762 app. A).

    `window`: trials over which the past slope is taken. `warmup_trials`: what every task gets first, in turns.
    `epsilon`: the share of turns given to a random task, so that none is judged by its first trials for ever.
    `unsolved_factor`: a task without a valid candidate is taken to run this many times slower than the slowest
    throughput (FLOP/s) seen on the others would make it.
    """

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 48
    warmup_trials: int = 16
    epsilon: float = 0.05
    unsolved_factor: float = 2.0


@dataclass(frozen=True)
class FinalConfig:
    """`finalists` are measured again, interleaved. `tie_ratio`: two whose ratio's interval comes closer to 1 than this
    are tied, since memory placement alone moves a median that much between processes. `widest`: an interval whose upper
    end is more than this times its lower one says nothing about which is faster."""

    finalists: int = 8
    resamples: int = 2000
    confidence: float = 0.95
    tie_ratio: float = 0.005
    widest: float = 1.5


@dataclass(frozen=True)
class Preset:
    name: str
    batch_size: int = 8
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    evolution: EvolutionConfig = field(default_factory=EvolutionConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    final: FinalConfig = field(default_factory=FinalConfig)
    model: ModelConfig = field(default_factory=ModelConfig)


_STANDARD = Preset("standard")
_QUICK = Preset(
    "quick",
    evolution=EvolutionConfig(population=128, generations=2, elites=16),
    budget=BudgetConfig(patience=32, hopeless=64),
    scheduler=SchedulerConfig(window=24, warmup_trials=8),
)
_THOROUGH = Preset(
    "thorough",
    batch_size=16,
    evolution=EvolutionConfig(population=512, generations=6, elites=64, epsilon=0.15),
    budget=BudgetConfig(near_roofline=0.99, hopeless=512),
    scheduler=SchedulerConfig(window=96, warmup_trials=32),
    final=dataclasses.replace(FinalConfig(), resamples=4000),
)

PRESETS: dict[str, Preset] = {p.name: p for p in (_QUICK, _STANDARD, _THOROUGH)}


def preset(name: str) -> Preset:
    """InvalidField naming `preset` for a name that is none."""
    if name not in PRESETS:
        raise InvalidField("preset", f"must be one of {', '.join(PRESETS)}, got {name!r}", tuple(PRESETS))
    return PRESETS[name]
