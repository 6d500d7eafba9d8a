"""What is done to the processes of a `World`: killed, or stopped past the lease and continued, chosen by a seed."""

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from benchmarks.chaos_world import World

# How often each is chosen. Actors, children and runners are cheap to start again; the head takes the cluster with it.
WEIGHTS = {
    "actor_kill": 24,
    "actor_stop": 12,
    "child_kill": 10,
    "runner_kill": 14,
    "runner_stop": 14,
    "api_kill": 6,
    "api_stop": 6,
    "postgres_kill": 5,
    "postgres_stop": 5,
    "host_kill": 3,
    "head_kill": 2,
}
ACTOR = "ray::DeviceActor"  # the title that Ray gives its worker process


@dataclass
class Storm:
    """Does one fault a call. Stopped processes go on by themselves after the lease has passed."""

    world: World
    rng: random.Random
    without: Sequence[str] = ()
    done: Counter[str] = field(default_factory=Counter)
    timers: list[threading.Timer] = field(default_factory=list)

    def strike(self) -> str | None:
        """One fault; its name, or None where the chosen victim is not there at this moment."""
        kinds = [k for k in WEIGHTS if k not in self.without]
        kinds = [k for k in kinds if k != "host_kill" or len(self.world.plan.hosts) > 1]
        kind = self.rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
        what, how = kind.split("_")
        victims = self._victims(what)
        if not victims:
            return None
        if how == "kill":
            _signal(victims, signal.SIGKILL)
        else:
            self._stop(victims)
        self.done[kind] += 1
        return kind

    def _victims(self, what: str) -> list[psutil.Process]:
        """The processes of one victim of that kind."""
        if what in ("actor", "child"):
            actors = self.world.titled(ACTOR)
            if not actors:
                return []
            actor = self.rng.choice(sorted(actors, key=lambda p: p.pid))
            return [actor] if what == "actor" else _children(actor)[:1]
        if what in ("runner", "host"):
            names = sorted(n for n in self.world.kept if n.startswith(what))
            return self.world.tree(self.rng.choice(names))
        return self.world.tree(what)

    def _stop(self, victims: list[psutil.Process]) -> None:
        _signal(victims, signal.SIGSTOP)
        seconds = self.world.plan.lease_s + self.rng.uniform(0.5, 2.5)
        timer = threading.Timer(seconds, _signal, (victims, signal.SIGCONT))
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def calm(self) -> None:
        """Wait until everything that was stopped goes on."""
        for timer in self.timers:
            timer.join()

    def blow(self, faults: int, every_s: float, limit_s: float) -> None:
        """`faults` of them, one about every `every_s` seconds, in at most `limit_s`."""
        end = time.monotonic() + limit_s
        while sum(self.done.values()) < faults and time.monotonic() < end:
            time.sleep(self.rng.uniform(0.5, 1.5) * every_s if self.strike() else 0.2)
        self.calm()


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []
