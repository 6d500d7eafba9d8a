"""Several devices behind one service: a job's tasks spread over those that match, an unfit one is set aside visibly."""

import itertools
from collections import defaultdict
from pathlib import Path

from tests.support.running_service import RunningService

SCRIPT = {
    "devices": [
        {"id": "a", "arch": "alpha"},
        {"id": "b", "arch": "alpha"},
        {"id": "c", "arch": "alpha", "self_tests": [{"answer_ok": False}]},
        {"id": "d", "arch": "beta"},
    ],
    "default": {"latency_s": "hash", "do": "sleep", "seconds": 0.03},
    "baseline": {"latency_s": 0.0015},
}
TASKS = [{"workload": {"op": "gemm", "m": m, "n": 128, "k": 128, "dtype": "float32"}} for m in (16, 32, 48, 64)]


def test_a_job_uses_every_matching_device_alone_and_no_unfit_one(tmp_path: Path) -> None:
    with RunningService(tmp_path, SCRIPT) as service:
        service.wait(lambda: len(service.client.get("/v1/workers")["items"]) == 4, 60, "four devices")
        workers = {w["device_id"]: w for w in service.client.get("/v1/workers")["items"]}
        assert [workers[d]["healthy"] for d in "abcd"] == [True, True, False, True]
        assert workers["c"]["detail"] == "wrong answer on a known product"
        alpha = service.submit(tasks=TASKS, target={"kind": "cpu", "arch": "alpha"}, max_trials=64)
        job = service.finished(alpha)
        trials = service.trials(alpha)
        assert (job["state"], job["error"], job["trials"]["done"], len(trials)) == ("completed", None, 64, 64)
        assert {t["device"] for t in trials} == {"a", "b"}
        assert {t["task"] for t in trials} == {0, 1, 2, 3}
        taken = defaultdict(list)
        for t in trials:
            taken[t["device"]].append((t["started_at"], t["finished_at"]))
        for intervals in taken.values():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(intervals)))
        beta = service.finished(service.submit(tasks=TASKS[:1], target={"kind": "cpu", "arch": "beta"}, max_trials=8))
        assert {t["device"] for t in service.trials(beta["id"])} == {"d"}
        assert beta["tasks"][0]["target"]["arch"] == "beta"
