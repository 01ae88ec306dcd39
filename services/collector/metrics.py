"""The collector's metrics, one table of names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "tidegate_collector_"


class CollectorMetrics:
    """Counters and gauges of one collector process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, what, labels, registry=registry)

        self.snapshots = counter("snapshots", "Snapshots made")
        self.missing = counter("missing_parts", "Parts missing from snapshots", "part")
        self.delivered = counter("delivered", "Events acknowledged by the broker")
        self.undelivered = counter("undelivered", "Events that did not reach the broker")
        self.source_failures = counter("source_failures", "Calls to a source that failed or took too long", "source")
        self.broken_lines = counter("broken_lines", "Unreadable lines of event logs")
        self.unreadable_specs = counter("unreadable_specs", "Records of the jobs topic sent to the dead letters")
        self.skipped = Gauge(PREFIX + "skipped", "Snapshots skipped because they were overdue", registry=registry)
        self.jobs = Gauge(PREFIX + "jobs", "Measured jobs", registry=registry)
        self.round_seconds = Histogram(
            PREFIX + "round_seconds", "Duration of a round, until its last snapshot is queued", registry=registry
        )
