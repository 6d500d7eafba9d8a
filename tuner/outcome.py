"""How the attempt to measure a candidate ended."""

from enum import StrEnum


class Outcome(StrEnum):
    OK = "OK"
    LOWER_ERROR = "LOWER_ERROR"
    BUILD_ERROR = "BUILD_ERROR"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    RUN_ERROR = "RUN_ERROR"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WRONG_ANSWER = "WRONG_ANSWER"
    # Nobody's fault (a SIGKILL that was not ours): retried once, then recorded, never trained on.
    WORKER_LOST = "WORKER_LOST"

    @property
    def is_candidates_fault(self) -> bool:
        return self not in (Outcome.OK, Outcome.WORKER_LOST)
