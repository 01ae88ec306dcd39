"""The decider's metrics, one table of names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "tidegate_decider_"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class DeciderMetrics:
    """Counters and gauges of one decider process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, what, labels, registry=registry)

        self.snapshots = counter("snapshots", "Snapshots by outcome: decided, dropped, dead_lettered", "outcome")
        self.results = counter("results", "Results by outcome: taken, dropped, dead_lettered", "outcome")
        self.commands = counter("commands", "Commands by kind", "kind")
        self.reservations = counter("reservations", "Requested reservations by answer", "answer")
        self.states_lost = counter("states_lost", "States in the changelog that could not be read")
        self.rebuilds = counter("rebuilds", "Rebuilds of Redis from the topics")
        self.decide_seconds = Histogram(
            PREFIX + "decide_seconds", "Time from a snapshot to its stored state", buckets=BUCKETS, registry=registry
        )
        self.lag_records = Gauge(
            PREFIX + "lag_records", "Snapshots and results not yet handled on own partitions", registry=registry
        )
