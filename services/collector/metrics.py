"""The collector's own figures, under `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "tidegate_collector_"


class Metrics:
    """One table of all metrics; names are the table's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, what, labels, registry=registry)

        self.snapshots = counter("snapshots", "Snapshots made")
        self.missing = counter("missing_parts", "Parts missing from snapshots", "part")
        self.delivered = counter("delivered", "Events acknowledged by the broker")
        self.undelivered = counter("undelivered", "Events that did not reach the broker")
        self.source_failures = counter("source_failures", "Calls of a source that failed or took too long", "source")
        self.broken_lines = counter("broken_lines", "Lines of event logs that could not be read")
        self.unreadable_specs = counter("unreadable_specs", "Records of the jobs topic sent to the dead letters")
        self.skipped = Gauge(PREFIX + "skipped", "Snapshots left out because their time had passed", registry=registry)
        self.jobs = Gauge(PREFIX + "jobs", "Jobs measured", registry=registry)
        self.round_seconds = Histogram(
            PREFIX + "round_seconds", "Time from a due instant to its last snapshot handed over", registry=registry
        )
