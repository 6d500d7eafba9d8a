"""The chaos run in small, through every real process; tests/db/test_store_chaos.py is the store's half of it."""

from pathlib import Path

import pytest

from benchmarks.chaos import SMALL, run


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("postgres_server")  # skips where PostgreSQL's programs are missing
def test_faults_lose_double_and_block_nothing(tmp_path: Path) -> None:
    verdict, faults, _ = run(SMALL, seed=7, folder=tmp_path / "world")
    assert (verdict.lost, verdict.doubled, verdict.stuck) == ([], [], [])
    assert (verdict.off_budget, verdict.overlapping) == ([], [])
    assert sum(faults.values()) >= SMALL.faults
    assert verdict.counts["commits_in_ledger"] > 0
    assert verdict.counts["records"] >= verdict.counts["commits_in_ledger"]
