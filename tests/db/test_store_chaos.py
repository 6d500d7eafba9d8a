"""Runners on one PostgreSQL while both are killed and stopped: what was acknowledged is there, once, and jobs end.

The store's half of `benchmarks.chaos` (which needs minutes): real processes, leases, patience and ledger; no devices.
"""

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from store_nouns import gemm, job_spec

from benchmarks.chaos_ledger import verify
from benchmarks.chaos_world import DURABLE
from db import open_store
from tests.support.postgres_server import PostgresMissing, PostgresServer
from tuner.job import FINAL

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

LEASE_S, WORKERS, JOBS, TRIALS = 1.0, 2, 3, 40
ROOT = Path(__file__).resolve().parents[2]


class Workers:
    def __init__(self, url: str, ledgers: Path) -> None:
        self._command = [sys.executable, "-m", "tests.support.ledger_worker", url, str(ledgers), str(LEASE_S)]
        self.running = [self._start() for _ in range(WORKERS)]

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL)

    def kill(self, place: int) -> None:
        self.running[place].kill()
        self.running[place].wait()
        self.running[place] = self._start()

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer(DURABLE)
    except PostgresMissing as fault:
        pytest.skip(str(fault))
    server.start()
    yield server
    server.stop()


def tree(pid: int | None) -> list[psutil.Process]:
    assert pid is not None
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


@contextlib.contextmanager
def stopped(processes: list[psutil.Process], seconds: float) -> Iterator[None]:
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            p.send_signal(signal.SIGSTOP)
    yield
    time.sleep(seconds)
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            p.send_signal(signal.SIGCONT)


def wait(condition: object, limit_s: float = 240.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.1)


def test_nothing_acknowledged_is_lost_or_doubled_and_every_job_ends_at_its_budget(
    server: PostgresServer, tmp_path: Path
) -> None:
    url, rng = server.create_database("chaos"), random.Random(3)
    store = open_store(url, migrate=True)
    jobs = [store.create_job(job_spec(gemm(m=i + 1), max_trials=TRIALS), None, 1.0)[0].id for i in range(JOBS)]
    workers = Workers(url, tmp_path)

    def measured() -> int:
        return sum(store.job(j).trials_done for j in jobs)

    try:
        wait(lambda: measured() >= 5)
        workers.kill(0)
        with stopped(tree(workers.running[1].pid), LEASE_S + 0.5):  # past the lease: what it commits then is refused
            pass
        for p in tree(server.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        time.sleep(rng.uniform(0.2, 0.6))
        assert server.start_again()
        before = measured()
        wait(lambda: measured() >= min(before + 5, JOBS * TRIALS))
        with stopped(tree(server.pid), LEASE_S + 0.5):
            pass
        workers.kill(1)
        wait(lambda: all(store.job(j).state in FINAL for j in jobs))
    finally:
        workers.end()
        store.close()
    verdict = verify(url, tmp_path)
    assert (verdict.lost, verdict.doubled, verdict.stuck, verdict.off_budget) == ([], [], [], [])
    assert verdict.counts["records"] == JOBS * TRIALS
    assert verdict.counts["commits_in_ledger"] > 0
