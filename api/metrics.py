"""Prometheus metrics: request latencies, and totals read from the store at each scrape."""

from collections import deque
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuner.job import JobState
from tuner.outcome import Outcome
from tuner.views import ServiceStore, StoreCounts

WINDOW_S = 300.0
_SECONDS = {"build_seconds": "Time to build a candidate", "measure_seconds": "Time a candidate held its device"}
_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """One registry per application, so that two in one process do not share series."""

    def __init__(self, store: ServiceStore, now: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            "tilewright_http_request_seconds",
            "Time to the end of an answer (to its start for event streams)",
            ("method", "route", "status"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.watchers = Gauge("tilewright_event_watchers", "Open event streams", registry=self.registry)
        self.registry.register(_StoreTotals(store, now))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _IdleShare:
    """The share of devices' time without measuring, over about the last WINDOW_S; from the totals at first."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float, float]]] = {}

    def ratio(self, kind: str, now: float, alive_s: float, busy_s: float) -> float | None:
        seen = self._seen.setdefault(kind, deque([(now - WINDOW_S, 0.0, 0.0)]))
        if now - seen[-1][0] >= WINDOW_S / 10:
            seen.append((now, alive_s, busy_s))
        while len(seen) > 1 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        _, alive, busy = seen[0]
        spent = alive_s - alive
        return None if spent <= 0.0 else min(1.0, max(0.0, 1.0 - (busy_s - busy) / spent))


class _StoreTotals(Collector):
    def __init__(self, store: ServiceStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._idle = _IdleShare()

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the database."""
        return iter(())

    def _work(self, counts: StoreCounts) -> Iterator[Metric]:
        """What runners have done, and what is left for them."""
        waiting = sum(counts.jobs.get(state, 0) for state in (JobState.QUEUED, JobState.INTERRUPTED))
        yield GaugeMetricFamily("tilewright_queue_jobs", "Jobs that wait for a runner", value=waiting)
        yield GaugeMetricFamily(
            "tilewright_queue_trials", "Trials that open jobs may measure", value=counts.open_trials
        )
        yield CounterMetricFamily("tilewright_leases_lost", "Leases that ran out", value=counts.leases_lost)
        for name, (buckets, total) in counts.seconds.items():
            yield HistogramMetricFamily(f"tilewright_{name}", _SECONDS[name], buckets=list(buckets), sum_value=total)
        alive = CounterMetricFamily("tilewright_device_alive_seconds", "Healthy devices' time", labels=["kind"])
        busy = CounterMetricFamily("tilewright_device_busy_seconds", "Of that, measuring", labels=["kind"])
        idle = GaugeMetricFamily("tilewright_device_idle_ratio", "Share of that not spent measuring", labels=["kind"])
        for kind in sorted({*counts.device_alive_s, *counts.device_busy_s}):
            seconds = counts.device_alive_s.get(kind, 0.0)
            alive.add_metric([kind], seconds)
            busy.add_metric([kind], counts.device_busy_s.get(kind, 0.0))
            ratio = self._idle.ratio(kind, self._now(), seconds, counts.device_busy_s.get(kind, 0.0))
            if ratio is not None:
                idle.add_metric([kind], ratio)
        yield from (alive, busy, idle)

    def collect(self) -> Iterator[Metric]:
        counts = self._store.counts()
        jobs = GaugeMetricFamily("tilewright_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], counts.jobs.get(state, 0))
        trials = CounterMetricFamily("tilewright_trials", "Committed trials by outcome", labels=["outcome"])
        for outcome in Outcome:
            trials.add_metric([outcome.value], counts.trials.get(outcome, 0))
        lookups = CounterMetricFamily("tilewright_lookups", "Schedule lookups by status", labels=["status"])
        for status in ("exact", "nearest", "stale", "missed"):
            lookups.add_metric([status], counts.lookups.get(status, 0))
        devices = GaugeMetricFamily("tilewright_devices", "Devices that runners report", labels=["kind", "health"])
        tally: dict[tuple[str, str], int] = {}
        for device in self._store.devices(self._now()):
            health = "lost" if not device.alive else "healthy" if device.healthy else "unhealthy"
            tally[device.target.kind, health] = tally.get((device.target.kind, health), 0) + 1
        for labels, number in sorted(tally.items()):
            devices.add_metric(list(labels), number)
        yield from (jobs, trials, lookups, devices, *self._work(counts))
        yield GaugeMetricFamily("tilewright_schedules", "Schedules served", value=counts.schedules)
