"""Prometheus metrics: request latencies, and totals read from the store at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuner.job import JobState
from tuner.outcome import Outcome
from tuner.views import ServiceStore

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


class _StoreTotals(Collector):
    def __init__(self, store: ServiceStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the database."""
        return iter(())

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
        yield from (jobs, trials, lookups, devices)
        yield GaugeMetricFamily("tilewright_schedules", "Schedules served", value=counts.schedules)
