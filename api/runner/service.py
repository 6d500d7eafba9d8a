"""The runner's outer loop: heartbeat devices, claim a job, work on it, again."""

import logging
import threading
from collections.abc import Mapping, Sequence

from api.runner.job_run import JobRun, Unschedulable
from api.runner.lease_keeper import LeaseKeeper
from tuner.job import JobState
from tuner.ports import (
    DeviceInfo,
    Lease,
    LeaseLost,
    MeasurePolicy,
    Measurer,
    MeasurerUnavailable,
    RunnerStore,
    StoreUnavailable,
    TaskRefused,
)

log = logging.getLogger("tilewright.runner")

HEARTBEAT_S = 3.0
IDLE_S = 0.5
BACKOFF_S = 5.0
# Of a job among others of its priority: taking up a job costs its inputs, references and a vendor measurement.
SLICE_S = 60.0


class Runner:
    """Claims jobs until `stop` is set. Whatever breaks while it works on a job is that job's error, never the end of
    the runner; a job it cannot finish goes back to be claimed again."""

    def __init__(
        self,
        store: RunnerStore,
        measurer: Measurer,
        policies: Mapping[str, MeasurePolicy],
        runner_id: str,
        lease_s: float,
        stop: threading.Event,
        only_job: str | None = None,
        learns: bool = True,
        slice_s: float = SLICE_S,
    ) -> None:
        self._store, self._measurer, self._policies = store, measurer, policies
        self._id, self._lease_s, self._stop = runner_id, lease_s, stop
        self._only_job, self._learns, self._slice_s = only_job, learns, slice_s
        self._devices: Sequence[DeviceInfo] = ()

    def run_forever(self) -> None:
        beat = threading.Thread(target=self._heartbeat, name="device-heartbeat", daemon=True)
        beat.start()
        while not self._stop.is_set():
            try:
                if not self.run_once():
                    self._stop.wait(IDLE_S)
            except (MeasurerUnavailable, StoreUnavailable) as fault:
                log.warning("waiting: %s", fault)
                self._stop.wait(BACKOFF_S)
        beat.join()

    def run_once(self) -> bool:
        """Claim one job and work on it; False when there was none. Raises MeasurerUnavailable, StoreUnavailable."""
        self._devices = self._measurer.devices()
        kinds = sorted({d.target.kind for d in self._devices if d.healthy})
        lease = self._store.claim(self._id, kinds, self._lease_s, self._only_job) if kinds else None
        if lease is None:
            return False
        told = {"job": lease.job_id, "token": lease.token, "runner": self._id}
        log.info("job %s: claimed with token %d", lease.job_id, lease.token, extra=told)
        targets = tuple({d.target: None for d in self._devices if d.healthy})

        def gives_way() -> bool:
            return self._only_job is None and self._store.yield_job(lease, kinds, self._slice_s, targets)

        with LeaseKeeper(self._store, lease, self._lease_s, gives_way) as keeper:
            self._work(lease, keeper)
        return True

    def _work(self, lease: Lease, keeper: LeaseKeeper) -> None:
        try:
            JobRun(
                self._store, self._measurer, self._devices, self._policies, lease, keeper, self._stop, self._learns
            ).run()
            if self._stop.is_set() and not keeper.must_stop:
                self._store.release(lease)
        except LeaseLost:
            log.info("job %s: the lease is gone (%s)", lease.job_id, keeper.wanted)
        except (MeasurerUnavailable, StoreUnavailable):
            self._release(lease)
            raise
        except Unschedulable as fault:
            self._fail(lease, f"unschedulable: {fault}")
        except TaskRefused as fault:
            self._fail(lease, f"task_refused: {fault}")
        except KeyboardInterrupt:
            self._release(lease)
            raise
        except Exception as fault:  # the job's error, whatever it is
            log.exception("job %s failed", lease.job_id, extra={"job": lease.job_id})
            self._fail(lease, f"internal: {type(fault).__name__}: {fault}")

    def _release(self, lease: Lease) -> None:
        """Give the job back; where even that fails, the lease's expiry does it."""
        try:
            self._store.release(lease)
        except (LeaseLost, StoreUnavailable) as fault:
            log.warning("job %s not released, its lease will expire: %s", lease.job_id, fault)

    def _fail(self, lease: Lease, error: str) -> None:
        try:
            self._store.finish_job(lease, JobState.FAILED, None, error)
        except LeaseLost:
            log.info("job %s: the lease is gone", lease.job_id)

    def _heartbeat(self) -> None:
        """Rows that the HTTP process reads devices and readiness from; missing three of them means gone."""
        while not self._stop.is_set():
            try:
                self._store.heartbeat_devices(self._id, self._devices, 3 * HEARTBEAT_S)
            except Exception as fault:  # noqa: BLE001  the next beat tries again
                log.warning("no heartbeat: %s", fault)
            self._stop.wait(HEARTBEAT_S if self._devices else IDLE_S)
        self._store.heartbeat_devices(self._id, (), 0.0)
