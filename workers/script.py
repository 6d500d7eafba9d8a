"""What each measured candidate does, told ahead: the plain data behind the scripted and the recorded measurer."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from search_space import fields
from search_space.candidate import Candidate
from search_space.errors import InvalidField
from tuner.outcome import Outcome
from workers.scripted_devices import ScriptedDevice, parse_devices

HASH = "hash"
# Words that JSON has no number for.
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
ACTIONS = ("hang", "crash", "allocate", "sleep", "write_nothing", "write_half", "accumulate", "write_outside")
KERNELS = ("write_nothing", "write_half", "accumulate", "write_outside")
STAGES = ("build", "run")
BUILD_OUTCOMES = (Outcome.LOWER_ERROR, Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT)
_ENTRY = frozenset({"latency_s", "outcome", "message", "do", "seconds", "stage"})
# A "hash" latency lies between 1 ms and 2 ms.
_HASH_BASE_S = 1e-3


class BadScript(ValueError):
    """A script file that cannot be right; the message names the file and the field."""


@dataclass(frozen=True)
class Entry:
    """What one candidate does. `latency_s` is a number (NaN and infinities too) or "hash"; `do` misbehaves first, in
    the builder's child or the measuring child as `stage` says; `outcome` other than OK is reported as it stands."""

    latency_s: float | str = HASH
    outcome: Outcome = Outcome.OK
    message: str = ""
    do: str | None = None
    seconds: float = 0.0
    stage: str = "run"

    def latency(self, name: str) -> float:
        """Seconds; a "hash" depends only on `name`, a candidate's key."""
        return hash_latency(name) if isinstance(self.latency_s, str) else self.latency_s

    def to_json(self) -> dict[str, object]:
        latency = self.latency_s
        if isinstance(latency, float) and not math.isfinite(latency):
            latency = next(w for w, v in _SPECIAL.items() if v == latency or (v != v and latency != latency))
        out = {"latency_s": latency, "outcome": self.outcome.value, "message": self.message}
        return {**out, "do": self.do, "seconds": self.seconds, "stage": self.stage}

    @staticmethod
    def from_json(data: object) -> "Entry":
        """InvalidField naming the field of the entry."""
        if not isinstance(data, Mapping):
            raise InvalidField("", "must be an object")
        fields.only(data, _ENTRY)
        outcome = Outcome(fields.choice(data, "outcome", tuple(Outcome), Outcome.OK))
        do = None if data.get("do") is None else fields.choice(data, "do", ACTIONS)
        stage = "build" if outcome in BUILD_OUTCOMES else "run"
        stage = fields.choice(data, "stage", STAGES, stage)
        if outcome in BUILD_OUTCOMES and stage != "build":
            raise InvalidField("stage", f"{outcome} comes out of the build stage")
        if stage == "build" and do in KERNELS:
            raise InvalidField("do", f"{do} is a kernel: it has no build stage")
        message = data.get("message", "")
        if not isinstance(message, str):
            raise InvalidField("message", "must be a string")
        return Entry(
            latency_s=_latency(data),
            outcome=outcome,
            message=message,
            do=do,
            seconds=fields.number(data, "seconds", 0.0, low=0.0) or 0.0,
            stage=stage,
        )


def hash_latency(name: str) -> float:
    digest = hashlib.sha256(name.encode()).digest()
    return _HASH_BASE_S * (1.0 + int.from_bytes(digest[:6], "big") / 2**48)


def _latency(data: Mapping[str, object]) -> float | str:
    value = data.get("latency_s", HASH)
    if value == HASH:
        return HASH
    if isinstance(value, str):
        if value not in _SPECIAL:
            allowed = (HASH, *_SPECIAL)
            raise InvalidField("latency_s", f"must be a number or one of {', '.join(allowed)}, got {value!r}", allowed)
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidField("latency_s", f"must be a number of seconds or a string, got {value!r}")
    return float(value)


class Scenario(Protocol):
    """Decides what a candidate does, in place of a compiler and a device. Pure data; crosses processes by pickle.

    `devices` stand in for this host's own where there are any.
    """

    @property
    def devices(self) -> tuple[ScriptedDevice, ...]: ...

    def entry(self, workload_key: str, candidate: Candidate, ordinal: int | None) -> Entry:
        """`ordinal`: the trial's in its job; None for a finalist that this session did not measure."""

    def baseline(self, workload_key: str) -> Entry: ...


@dataclass(frozen=True)
class Script:
    """`trials` by ordinal of the job, `default` after them; see design.md, "A measurer that follows a script"."""

    default: Entry = field(default_factory=Entry)
    trials: tuple[Entry, ...] = ()
    vendor: Entry = field(default_factory=Entry)
    devices: tuple[ScriptedDevice, ...] = ()

    def entry(self, workload_key: str, candidate: Candidate, ordinal: int | None) -> Entry:
        return self.default if ordinal is None or ordinal >= len(self.trials) else self.trials[ordinal]

    def baseline(self, workload_key: str) -> Entry:
        return self.vendor

    @staticmethod
    def from_json(data: object) -> "Script":
        """InvalidField with the dotted path of the field."""
        if not isinstance(data, Mapping):
            raise InvalidField("", "must be an object with default, trials, baseline and devices")
        fields.only(data, frozenset({"default", "trials", "baseline", "devices"}))
        trials = data.get("trials", [])
        if not isinstance(trials, list):
            raise InvalidField("trials", "must be a list")
        return Script(
            default=_entry(data.get("default", {}), "default"),
            trials=tuple(_entry(item, f"trials.{i}") for i, item in enumerate(trials)),
            vendor=_entry(data.get("baseline", {}), "baseline"),
            devices=parse_devices(data.get("devices", [])),
        )


def _entry(data: object, path: str) -> Entry:
    try:
        return Entry.from_json(data)
    except InvalidField as fault:
        raise fault.under(path) from None


def load_script(path: Path) -> Script:
    """Read `scripted:FILE.json`. Raises BadScript naming the file and the field."""
    try:
        return Script.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise BadScript(f"{path}: cannot be read: {fault.strerror}") from fault
    except InvalidField as fault:
        raise BadScript(f"{path}: {fault.field or 'the document'}: {fault.message}") from fault
    except ValueError as fault:
        raise BadScript(f"{path}: not JSON: {fault}") from fault
