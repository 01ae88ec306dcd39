"""The decider's metrics of itself; those of the jobs are in `job_metrics.py`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.decider.job_metrics import JobMetrics
from tidegate.events.topics import JOBS, RESULTS, SNAPSHOTS
from tidegate.runtime import metrics


class DeciderMetrics:
    """Counters and gauges of one decider process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = JobMetrics(registry)
        self.snapshots = metrics.DECIDED.counter(registry)
        self.results = metrics.TAKEN.counter(registry)
        self.reservations = metrics.RESERVATIONS.counter(registry)
        self.lost_states = metrics.LOST_STATES.counter(registry)
        self.rebuilds = metrics.REBUILDS.counter(registry)
        self.decide_seconds = metrics.DECIDE_SECONDS.histogram(registry)
        self.lag_records = metrics.DECIDER_LAG.gauge(registry)
        self.dead_letters = metrics.dead_letters(registry, JOBS, SNAPSHOTS, RESULTS)
