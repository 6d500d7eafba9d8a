"""A session's stays on its device: taking it, keeping it, giving it back, and what the death of its actor means."""

import uuid
from collections.abc import Callable, Mapping, Sequence

from tuner.measurement import Measurement
from tuner.outcome import Outcome
from tuner.ports import MeasurerUnavailable
from workers.bench import Contest
from workers.final_bed import Entrant, OpenTask
from workers.remote import Call, Cancelled, DeviceLost, RemoteDevice

# An actor that dies so often in a row, while a session only waits for it, will not come up.
_DEATHS = 5
_VENDOR_TRIES = 3


class DeviceStay:
    """For one thread at a time, but for `cancel`. `cancelled` says whether waiting for the device is still wanted."""

    def __init__(self, remote: RemoteDevice, task: OpenTask) -> None:
        self.session = uuid.uuid4().hex
        self._remote = remote
        self._task = task

    def take(self, cancelled: Callable[[], bool]) -> None:
        """Wait for the device. Raises Cancelled, MeasurerUnavailable."""
        for _ in range(_DEATHS):
            try:
                self._remote.acquire(self.session, cancelled)
            except DeviceLost as fault:
                last = fault
                if cancelled():
                    raise Cancelled from fault
                continue
            return
        raise MeasurerUnavailable(f"the measuring actor died {_DEATHS} times: {last}") from last

    def keep(self, cancelled: Callable[[], bool]) -> None:
        """Still here. With the actor the hold on the device is gone: then it is taken again. Raises as `take` does."""
        try:
            held = self._remote.control("renew", self.session)
        except DeviceLost:
            held = False
        if not held:
            self.take(cancelled)

    def leave(self) -> None:
        try:
            self._remote.control("release", self.session)
        except (DeviceLost, MeasurerUnavailable):
            return  # its hold went with it, or ends by itself when nobody renews it

    def warm_up(self, wait: bool) -> None:
        try:
            self._remote.work("warm_up", wait)
        except DeviceLost:
            return  # the next call goes to a new actor, which starts its child by itself

    def baseline(self) -> tuple[str, Measurement]:
        """Raises DeviceLost."""
        answer: tuple[str, Measurement] = self._remote.work("baseline", self.session, self._task)
        return answer

    def vendor(self, cancelled: Callable[[], bool]) -> tuple[str, Measurement]:
        """The vendor's measurement, taken again where it was lost through nobody's fault. Raises as `take` does, and
        DeviceLost the last time."""
        for _ in range(_VENDOR_TRIES - 1):
            try:
                name, measurement = self.baseline()
            except DeviceLost:
                self.take(cancelled)
                continue
            if measurement.outcome is not Outcome.WORKER_LOST:
                return name, measurement
            self.keep(cancelled)
        return self.baseline()

    def start(self, entrant: Entrant, best_latency_s: float | None) -> Call:
        """Have it measured when what was started before is done: the device need not wait for us in between."""
        return self._remote.start("measure", self.session, self._task, entrant, best_latency_s)

    def measured(self, call: Call, cancelled: Callable[[], bool]) -> Measurement:
        try:
            measurement: Measurement = self._remote.answer(call)
            return measurement
        except DeviceLost as fault:
            lost = Measurement(Outcome.WORKER_LOST, error=str(fault), identity=self._task.identity)
        self.take(cancelled)
        return lost

    def wanted(self) -> bool:
        """Whether another session waits for the device."""
        try:
            return bool(self._remote.control("wanted", self.session))
        except DeviceLost:
            return True

    def final(
        self, entrants: Sequence[Entrant], vendor: str
    ) -> tuple[Contest[str], Mapping[str, float], tuple[float, float]]:
        """Raises DeviceLost."""
        answer: tuple[Contest[str], Mapping[str, float], tuple[float, float]] = self._remote.work(
            "final", self.session, self._task, entrants, vendor
        )
        return answer

    def cancel(self, timeout_s: float) -> bool:
        """Kill what runs and free the device; False when there is no actor any more. One that does not listen is
        killed: its death frees the device too."""
        try:
            self._remote.control("cancel", self.session, timeout_s=timeout_s)
        except DeviceLost:
            return False
        except MeasurerUnavailable:
            self._remote.kill()
            return False
        return True

    def kill(self) -> None:
        """The actor does not listen: its death frees the device."""
        self._remote.kill()
