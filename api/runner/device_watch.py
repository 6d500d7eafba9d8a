"""What devices the measurer has at this moment, found out beside the work on jobs, and told to the database."""

import logging
import threading
from collections.abc import Callable, Sequence

from tuner.ports import DeviceInfo, Measurer, MeasurerUnavailable, RunnerStore

log = logging.getLogger("tilewright.runner")

HEARTBEAT_S = 3.0
SOON_S = 0.5


class DeviceWatch:
    """Two threads: one asks the measurer, which may take its time; one keeps the rows alive that the HTTP process reads
    devices and readiness from (missing three beats means gone)."""

    def __init__(self, store: RunnerStore, measurer: Measurer, runner_id: str, stop: threading.Event) -> None:
        self._store, self._measurer, self._runner_id, self._stop = store, measurer, runner_id, stop
        self._devices: Sequence[DeviceInfo] = ()
        self._threads = [
            threading.Thread(target=self._repeat, args=(self._look,), name="device-watch", daemon=True),
            threading.Thread(target=self._repeat, args=(self._beat,), name="device-heartbeat", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def now(self) -> Sequence[DeviceInfo]:
        """Those of the last look; where nobody started the threads, looks itself (raises MeasurerUnavailable)."""
        if self._threads[0].ident is None:
            self._devices = self._measurer.devices()
        return self._devices

    def close(self) -> None:
        for thread in self._threads:
            thread.join()

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self._stop.is_set():
            step()
            self._stop.wait(HEARTBEAT_S if self._devices else SOON_S)

    def _look(self) -> None:
        try:
            self._devices = self._measurer.devices()
        except MeasurerUnavailable as fault:
            if self._devices:
                log.warning("no device can be reached: %s", fault)
            self._devices = ()

    def _beat(self) -> None:
        if not self._devices:
            return  # rows of before expire by themselves
        try:
            self._store.heartbeat_devices(self._runner_id, self._devices, 3 * HEARTBEAT_S)
        except Exception as fault:  # noqa: BLE001  the next beat tries again
            log.warning("no heartbeat: %s", fault)
