"""The runner's outer loop: watch devices, claim a job, work on it, again."""

import logging
import threading
from collections.abc import Mapping

from api.runner.device_watch import DeviceWatch
from api.runner.job_run import JobRun, Unschedulable
from api.runner.lease_keeper import LeaseKeeper
from api.runner.patient_store import PatientStore
from tuner.job import JobState
from tuner.ports import (
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

IDLE_S = 0.5
BACKOFF_S = 5.0
# Of a job among others of its priority: taking up a job costs its inputs, references and a vendor measurement.
SLICE_S = 60.0


class Runner:
    """Claims jobs until `stop` is set, up to `slots` of them at a time. Whatever breaks while it works on a job is that
    job's error, never the end of the runner; a job it cannot finish goes back to be claimed again."""

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
        slots: int = 1,
        slice_s: float = SLICE_S,
    ) -> None:
        self._store, self._measurer, self._policies = store, measurer, policies
        self._id, self._lease_s, self._stop = runner_id, lease_s, stop
        self._only_job, self._learns, self._slots = only_job, learns, slots
        self._slice_s = slice_s
        self._watch = DeviceWatch(store, measurer, runner_id, stop)

    def run_forever(self) -> None:
        self._watch.start()
        others = [threading.Thread(target=self._serve, name=f"slot-{i}") for i in range(1, self._slots)]
        for thread in others:
            thread.start()
        self._serve()
        for thread in others:
            thread.join()
        self._watch.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                if not self.run_once():
                    self._stop.wait(IDLE_S)
            except (MeasurerUnavailable, StoreUnavailable) as fault:
                log.warning("waiting: %s", fault)
                self._stop.wait(BACKOFF_S)

    def run_once(self) -> bool:
        """Claim one job and work on it; False when there was none. Raises MeasurerUnavailable, StoreUnavailable."""
        targets = {d.target: None for d in self._watch.now() if d.healthy}
        kinds = sorted({t.kind for t in targets})
        if not targets:
            return False
        lease = self._store.claim(self._id, kinds, self._lease_s, self._only_job, tuple(targets))
        if lease is None:
            return False
        told = {"job": lease.job_id, "token": lease.token, "runner": self._id}
        log.info("job %s: claimed with token %d", lease.job_id, lease.token, extra=told)

        def gives_way() -> bool:
            return self._only_job is None and self._store.yield_job(lease, kinds, self._slice_s, tuple(targets))

        with LeaseKeeper(self._store, lease, self._lease_s, gives_way) as keeper:
            self._work(lease, keeper)
        return True

    def _work(self, lease: Lease, keeper: LeaseKeeper) -> None:
        store = PatientStore(self._store, lambda: keeper.must_stop or self._stop.is_set())
        devices = self._watch.now
        try:
            JobRun(store, self._measurer, devices, self._policies, lease, keeper, self._stop, self._learns).run()
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
        except StoreUnavailable as fault:
            log.warning("job %s: its failure is not stored, it will be claimed again: %s", lease.job_id, fault)
