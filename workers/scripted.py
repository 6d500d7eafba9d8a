"""A workbench whose kernels do what the script says: they really hang, crash, allocate or write the wrong thing.

Only the time is told instead of read: everything round it (child, limits, check, racing, repeats) is the real one.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from search_space.workload import Workload, canonical_bytes
from tilewright.runtime import digest_of
from tuner.outcome import Outcome
from workers.bench import Rejected
from workers.build import BuildResult
from workers.script import KERNELS, Entry

Json = Mapping[str, object]
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class ScriptedKernel:
    name: str
    entry: Entry


class ScriptedBed:
    """`time` answers with the entry's latency; `check` first does what the entry wants done."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def check(self, kernel: ScriptedKernel) -> float | None:
        entry = kernel.entry
        if entry.do in KERNELS:
            return self._check_for_real(entry.do or "")
        if entry.stage == "run":
            perform(entry)
        return None

    def time(self, kernel: ScriptedKernel, calls: int, warm_up: bool = False) -> float:
        return kernel.entry.latency(kernel.name) * calls

    def verify_guards(self) -> None:
        """Nothing ran since the check."""

    def _check_for_real(self, action: str) -> float:
        """A kernel that writes the right answer wrongly, on real guarded buffers, through the real check."""
        from workers.cpu_workbench import CpuBed
        from workers.misbehaving import MisbehavingKernel

        bed = CpuBed(self._workload)
        try:
            return bed.check(MisbehavingKernel(action))
        finally:
            bed.close()


class ScriptedWorkbench:
    def __init__(self, workload: Workload) -> None:
        self.bed = ScriptedBed(workload)

    def load(self, name: str, artifact: bytes, entry: Json | None) -> ScriptedKernel:
        if entry is None:
            raise ValueError("a scripted child was handed a candidate without an entry")
        return ScriptedKernel(name, Entry.from_json(entry))

    def vendor(self, entry: Json) -> tuple[str, ScriptedKernel]:
        return "torch", ScriptedKernel("vendor", Entry.from_json(entry))

    def vendor_note(self) -> str | None:
        return None

    def observed(self) -> Json:
        return {}

    def close(self) -> None:
        """Holds nothing between checks."""


def perform(entry: Entry) -> None:
    """Do what the entry says, in this process, and raise Rejected for the outcome it names."""
    if entry.do == "hang":
        _hang()
    elif entry.do == "crash":
        ctypes.string_at(0)
    elif entry.do == "allocate":
        _allocate()
    elif entry.do == "sleep":
        time.sleep(entry.seconds)
    if entry.outcome is Outcome.WORKER_LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    if entry.outcome is not Outcome.OK:
        raise Rejected(entry.outcome, entry.message or f"the script says {entry.outcome}")


def _hang() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # a hang in native code hears nothing
    while True:
        time.sleep(3600.0)


def _allocate() -> NoReturn:
    """Touch memory without end: the child's limit ends it."""
    kept = []
    while True:
        kept.append(b"\x01" * _CHUNK_BYTES)
        time.sleep(0.01)  # so that the supervisor's look at the child ends this, and not the host's last byte


def scripted_builder(arguments: Json) -> "ScriptedBuilder":
    """Entry of the builder child that does what an entry of the script tells it."""
    return ScriptedBuilder()


class ScriptedBuilder:
    """Builds nothing: the artifact is the candidate itself, as JSON. A build that the script spoils really fails."""

    def __call__(self, message: Json, payload: bytes) -> tuple[Json, bytes]:
        entry_json, candidate = message["entry"], message["candidate"]
        assert isinstance(entry_json, Mapping)
        assert isinstance(candidate, Mapping)
        entry = Entry.from_json(entry_json)
        if entry.stage == "build":
            try:
                perform(entry)
            except Rejected as fault:
                return BuildResult(fault.outcome, error=str(fault)).to_json(), b""
        artifact = canonical_bytes({"scripted": True, "candidate": candidate})
        return BuildResult(Outcome.OK, artifact, digest_of(artifact)).to_json(), artifact
