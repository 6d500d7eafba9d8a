"""Run as a process by the small chaos test: a runner's dealings with the store, without a device behind them.

``python -m tests.support.ledger_worker URL LEDGERS LEASE_S``: claims jobs, reserves and commits in batches under a
lease that is renewed, through the same PatientStore and LeaseKeeper as a runner; ends when it is killed.
"""

import sys
import time
from pathlib import Path

from api.runner.lease_keeper import LeaseKeeper
from api.runner.patient_store import PatientStore
from benchmarks.chaos_ledger import Ledger, LedgerStore
from db import open_store
from tests.support.store_nouns import TARGET, candidate, measured
from tuner.job import JobState, StopReason
from tuner.ports import Lease, LeaseLost, RunnerStore, StoreUnavailable
from tuner.task import Task

BATCH = 4


def work_on(store: RunnerStore, lease: Lease, keeper: LeaseKeeper) -> None:
    task = lease.tasks[0]
    store.bind(lease, task.task_id, Task(lease.spec.tasks[0].workload, TARGET))
    number = lease.token * 10_000
    while not keeper.must_stop:
        trials = store.reserve(lease, task.task_id, [(candidate(number + i), None) for i in range(BATCH)])
        number += BATCH
        if not trials:
            store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)
            return
        for trial in trials:
            time.sleep(0.01)
            store.commit(lease, task.task_id, measured(trial, 1.0 / (1 + trial.ordinal)))


def serve(store: LedgerStore, lease: Lease, lease_s: float) -> None:
    with LeaseKeeper(store, lease, lease_s) as keeper:  # type: ignore[arg-type]
        work_on(PatientStore(store, lambda: keeper.must_stop), lease, keeper)  # type: ignore[arg-type]


def main() -> None:
    url, folder, lease_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    store = LedgerStore(open_store(url), Ledger(folder, "worker"))
    while True:
        try:
            lease = store.claim(f"worker-{time.time_ns()}", ["cpu"], lease_s)
            if lease is None:
                time.sleep(0.1)
            else:
                serve(store, lease, lease_s)
        except (LeaseLost, StoreUnavailable):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
