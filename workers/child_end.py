"""How a child's work ended without an answer, and what its exit status means."""

import signal
from dataclasses import dataclass
from enum import StrEnum


class End(StrEnum):
    """Why a request got no answer."""

    ERROR = "error"  # the handler raised; the child lives on
    TIMEOUT = "timeout"  # the limit passed: we killed it
    CRASH = "crash"  # a fatal signal of its own, or it exited by itself
    OUT_OF_MEMORY = "out_of_memory"  # over its limit: we killed it, or an allocation failed in it
    LOST = "lost"  # a SIGKILL (or SIGTERM) that was not ours
    CANCELLED = "cancelled"  # kill() was called from another thread


@dataclass(frozen=True)
class Failure:
    """`message` is one line for a user; `error_type` the exception's class name where the handler raised."""

    end: End
    message: str
    error_type: str = ""


_LOST = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGIO})


def classify_status(status: int, words: str = "") -> Failure:
    """The end of a child that we did not kill; `status` as subprocess gives it (negative: minus the signal)."""
    tail = f": {words}" if words else ""
    if status >= 0:
        memory = "bad_alloc" in words or "MemoryError" in words
        return Failure(End.OUT_OF_MEMORY if memory else End.CRASH, f"exited with status {status}{tail}")
    name = signal.Signals(-status).name
    if -status in _LOST:
        return Failure(End.LOST, f"killed from outside by {name}{tail}")
    if -status == signal.SIGABRT and "bad_alloc" in words:
        return Failure(End.OUT_OF_MEMORY, f"an allocation failed{tail}")
    return Failure(End.CRASH, f"crashed with {name}{tail}")
