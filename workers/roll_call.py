"""Asks every device of the cluster what it is, and waits for none that is silent."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

import ray

from tuner.ports import DeviceInfo, MeasurerUnavailable
from workers.remote import Call, DeviceLost, RemoteDevice

FIRST_S = 20.0  # how long the first call waits for further devices when one has answered
ANSWER_S = 2.0  # for an actor that is up; one that is not has until the next call, or the one after it

_log = logging.getLogger(__name__)


class RollCall:
    """Keeps what each device answered last. For one thread at a time."""

    def __init__(self, remote: Callable[[str], RemoteDevice], start_timeout_s: float, silent_after_s: float) -> None:
        self._remote = remote
        self._start_timeout_s = start_timeout_s
        self._silent_after_s = silent_after_s
        self._known: dict[str, DeviceInfo] = {}
        self._deaths: dict[str, int] = {}  # of its actor since it last answered
        self._asked: dict[str, tuple[float, Call]] = {}  # device -> (since when, the call)

    def call(self, names: Sequence[str]) -> list[DeviceInfo]:
        """What is known of `names` now. Before the first device is known at all: waits for it, and raises
        MeasurerUnavailable where none answers within `start_timeout_s`."""
        for gone in [n for n in (*self._known, *self._asked) if n not in names]:
            self._known.pop(gone, None)
            self._asked.pop(gone, None)
        fault = self._ask(names)
        if names and not self._known:
            raise fault or MeasurerUnavailable(f"none of the measuring actors of {', '.join(names)} answers")
        return [self._seen(name) for name in names if name in self._known]

    def _ask(self, names: Sequence[str]) -> MeasurerUnavailable | None:
        """One round; the last fault of a device that could not be asked."""
        fault: MeasurerUnavailable | None = None
        for name in names:
            if name not in self._asked:
                try:
                    self._asked[name] = (time.monotonic(), self._remote(name).ask_info())
                except MeasurerUnavailable as gone:
                    fault = gone
        first = not self._known
        deadline = time.monotonic() + (self._start_timeout_s if first else ANSWER_S)
        while self._asked:
            references = {call.reference: name for name, (_, call) in self._asked.items()}
            left = max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(list(references), num_returns=1, timeout=left)
            for reference in ready:
                fault = self._hear(references[reference]) or fault
            if not ready or (self._known and not left):
                break
            if first and self._known:  # the others started at the same time: they are up soon, or later than this call
                deadline = min(deadline, time.monotonic() + FIRST_S)
        return fault

    def _hear(self, name: str) -> MeasurerUnavailable | None:
        _, call = self._asked.pop(name)
        try:
            self._known[name] = self._remote(name).get(call, ANSWER_S)
            self._deaths[name] = 0
        except DeviceLost as lost:
            # One death is a session's to deal with; an actor that dies again and again is no device to give work to.
            _log.warning("device %s: %s", name, lost)
            self._deaths[name] = self._deaths.get(name, 0) + 1
            if self._deaths[name] > 1:
                self._set_aside(name, f"its measuring actor died {self._deaths[name]} times in a row")
            return MeasurerUnavailable(f"the measuring actor of device {name} dies at once")
        except MeasurerUnavailable as fault:
            _log.warning("device %s: %s", name, fault)
            self._set_aside(name, str(fault))
            return fault
        return None

    def _set_aside(self, name: str, why: str) -> None:
        if name in self._known:
            self._known[name] = dataclasses.replace(self._known[name], healthy=False, detail=why)

    def _seen(self, name: str) -> DeviceInfo:
        info = self._known[name]
        since = self._asked[name][0] if name in self._asked else None
        if since is not None and time.monotonic() - since > self._silent_after_s:
            silent = f"its measuring actor has not answered for {time.monotonic() - since:.0f} s"
            return dataclasses.replace(info, healthy=False, detail=silent)
        return info
