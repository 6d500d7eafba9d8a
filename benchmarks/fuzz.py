"""Twenty thousand generated requests, right and wrong: `python -m benchmarks.fuzz`.

schemathesis over the service's own OpenAPI document, in this process, on a store with content. Ends with 1 at the first
kind of answer that the document does not promise (a 5xx, invalid JSON, a refusal or an acceptance too many).
"""

import argparse
import sys
import tempfile
from pathlib import Path

import schemathesis
from schemathesis.generation import GenerationMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from api_world import KEY, claimed_job, finish, new_app, new_store, one_sketch
from generated_requests import Tally, check_operation, checks_of, operations
from store_nouns import FakeClock, device

from benchmarks.result_file import ROOT, ResultFile, versions
from db import migrate

PROTOCOL = (
    "The application in this process over a SQLite store with one completed job; bearer keys on. Each operation of "
    "/openapi.json gets the same number of requests that fit the document and of requests that do not, in rounds with "
    "seeds of their own, until the number asked for is reached."
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    result = ResultFile("fuzz", PROTOCOL, versions(["schemathesis", "hypothesis", "fastapi"]))
    tally, faults = Tally(), {}
    with tempfile.TemporaryDirectory() as folder, one_sketch():
        file, clock = Path(folder) / "fuzz.db", FakeClock()
        migrate(str(file))
        store = new_store(file, clock)
        store.heartbeat_devices("runner-1", [device()], 1e9)
        finish(store, claimed_job(store, [0.003, None, 0.002]))
        app = new_app(store, clock, allowed_hosts=("testserver",), keys=(KEY,))
        document = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Authorization": f"Bearer {KEY}"})
        every = list(operations(document))
        rounds = 0
        while tally.total < options.requests and rounds < 100:
            for path, method in every:
                for mode in GenerationMode:
                    try:
                        headers = {"Authorization": f"Bearer {KEY}"}
                        check_operation(document, path, method, mode, 50, tally, headers, options.seed + rounds)
                    except Exception as fault:  # noqa: BLE001  all of them are listed, not the first alone
                        faults.setdefault(f"{method.upper()} {path} {mode.value}", str(fault)[:2000])
            rounds += 1
            print(f"{tally.total} requests, {len(faults)} faults", flush=True)
        store.close()
    result.tables = {
        "requests": dict(tally.requests),
        "statuses": {str(k): v for k, v in sorted(tally.statuses.items())},
        "checks": {f"{m.upper()} {p}": checks_of(p) for p, m in every},
        "faults": faults,
    }
    served = sum(n for status, n in tally.statuses.items() if status >= 500)
    result.summary = {"requests": tally.total, "faults": len(faults), "answers_5xx": served}
    print(result.write(options.out), result.summary)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
