"""Faults at random, and nothing lost: `python -m benchmarks.chaos`.

Scripted jobs on two runners, four measuring actors on two hosts of a Ray cluster, and PostgreSQL, all real processes,
while they are killed, or stopped past the lease and continued. Ends by itself; exits with 1 where anything was lost,
doubled, stuck or off its budget.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos_faults import Storm
from benchmarks.chaos_ledger import Verdict, verify
from benchmarks.chaos_users import Users
from benchmarks.chaos_world import Plan, World
from benchmarks.result_file import ROOT, ResultFile, cpu_environment

PROTOCOL = (
    "Every commit, promotion and end of a job that the store acknowledged to a runner, and every submission and cancel "
    "acknowledged to a user, is written to a file outside the database; afterwards the database is compared with it. "
    "lost: acknowledged and not there, or an event missed by a watcher that reconnects. doubled: two rows or events "
    "for one thing, or a counter that differs from its rows. stuck: jobs not ended after the faults. off_budget: jobs "
    "that ended at another number of trials than their budget without saying why. overlapping: two measurements on one "
    "device at a time. A fault counts once, whatever it takes with it."
)
ARCHES = ("alpha", "beta")


@dataclass(frozen=True)
class Scale:
    """How much: `every_s` is the mean time between faults; `settle_s` the time that open jobs have after the last."""

    faults: int
    every_s: float
    hosts: Sequence[Sequence[str]]
    open_jobs: int
    total_jobs: int | None = None
    lease_s: float = 4.0
    limit_s: float = 1800.0
    settle_s: float = 300.0
    without: Sequence[str] = ()  # faults that are left out


SMALL = Scale(
    faults=6,
    every_s=0.7,
    hosts=(("d0", "d1"),),
    open_jobs=3,
    total_jobs=3,
    lease_s=4.0,
    limit_s=20.0,
    without=("head_kill",),
)
FULL = Scale(faults=200, every_s=5.0, hosts=(("d0", "d1"), ("d2", "d3")), open_jobs=6)


def script(devices: Sequence[str]) -> dict[str, object]:
    """Devices of two architectures in turn; candidates of 50 ms, some of which fail by themselves."""
    declared = [{"id": d, "arch": ARCHES[i % 2], "model": "scripted"} for i, d in enumerate(devices)]
    trials = [{"do": "sleep", "seconds": 0.05} for _ in range(20)]
    trials[3] = {"outcome": "BUILD_ERROR", "message": "scripted"}
    trials[7] = {"do": "crash"}
    trials[11] = {"latency_s": "NaN"}
    slow = {"latency_s": "hash", "do": "sleep", "seconds": 0.05}
    return {"devices": declared, "trials": trials, "default": slow, "baseline": {"latency_s": 0.0015}}


def run(scale: Scale, seed: int, folder: Path) -> tuple[Verdict, dict[str, int], float]:
    """(what was found, faults by kind, seconds from the first fault to the end of the last job)."""
    devices = [d for host in scale.hosts for d in host]
    plan = Plan(scale.hosts, script(devices), lease_s=scale.lease_s)
    with World(plan, folder) as world:
        world.wait_ready(len(devices))
        users = Users(world, random.Random(seed), list(ARCHES), scale.open_jobs, scale.total_jobs)
        users.start()
        begin = time.monotonic()
        storm = Storm(world, random.Random(seed + 1), scale.without)
        storm.blow(scale.faults, scale.every_s, scale.limit_s)
        users.stop()
        users.settle(scale.settle_s)
        seconds = time.monotonic() - begin
        for name in [n for n in world.kept if n.startswith("runner")]:
            world.end(name)
        verdict = verify(world.database, world.ledgers)
        verdict.counts |= {f"starts_{k.name}": k.starts for k in world.kept.values()}
    return verdict, dict(storm.done), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=FULL.faults)
    parser.add_argument("--every", type=float, default=FULL.every_s, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="the scale of the test suite")
    parser.add_argument(
        "--keep", type=Path, default=None, help="folder for the logs and ledgers (default: thrown away)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    scale = SMALL if options.small else Scale(options.faults, options.every, FULL.hosts, FULL.open_jobs)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)) / f"chaos-{options.seed}"
        verdict, faults, seconds = run(scale, options.seed, folder)
    result = result_of(verdict, faults, seconds)
    print(result.write(options.out), result.summary)
    return int(any(result.summary[name] for name in ("lost", "doubled", "stuck", "off_budget", "overlapping")))


def result_of(verdict: Verdict, faults: dict[str, int], seconds: float) -> ResultFile:
    from workers.host import host_target

    target = host_target()
    result = ResultFile("chaos", PROTOCOL, cpu_environment(target.model, target.arch, target.cores))
    found = {
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "stuck": verdict.stuck,
        "off_budget": verdict.off_budget,
        "overlapping": verdict.overlapping,
    }
    result.tables = {"faults": faults, "counts": verdict.counts, "found": {k: v[:50] for k, v in found.items()}}
    result.summary = {
        "faults": sum(faults.values()),
        **{k: len(v) for k, v in found.items()},
        "seconds": round(seconds, 1),
    }
    return result


if __name__ == "__main__":
    sys.exit(main())
