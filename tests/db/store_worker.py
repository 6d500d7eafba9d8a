"""Run as a process by the tests of concurrency: works on jobs as a runner does, through its own store.

``python store_worker.py URL NAME [endless]``: claims jobs until there are none, reserving and committing in batches;
prints one line per acknowledged commit (trial id, attempt). `endless` never stops: it is there to be killed.
"""

import sys
import time

from store_nouns import TARGET, candidate, measured

from db import SqlStore, open_store
from tuner.job import JobState, StopReason
from tuner.ports import Lease, LeaseLost
from tuner.task import Task

LEASE_S = 60.0


def work_on(store: SqlStore, lease: Lease, salt: int) -> None:
    task = lease.tasks[0]
    store.bind(lease, task.task_id, Task(lease.spec.tasks[0].workload, TARGET))
    number = salt
    while True:
        number += 3
        batch = [(candidate(number + i), None) for i in range(3)]
        trials = store.reserve(lease, task.task_id, batch)
        if not trials:
            break
        for trial in trials:
            store.commit(lease, task.task_id, measured(trial, 1.0 / (1 + trial.ordinal)))
            print(trial.id, trial.attempt, flush=True)
    store.finish_job(lease, JobState.COMPLETED, StopReason.TRIALS, None)


def main() -> None:
    url, name, endless = sys.argv[1], sys.argv[2], len(sys.argv) > 3
    store = open_store(url)
    while True:
        lease = store.claim(name, ["cpu"], LEASE_S)
        if lease is not None:
            try:
                work_on(store, lease, lease.token * 10_000)
            except LeaseLost:
                continue
        elif endless:
            time.sleep(0.01)
        else:
            return


if __name__ == "__main__":
    main()
