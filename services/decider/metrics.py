"""The decider's metrics: one table of names, in Prometheus' conventions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class DeciderMetrics:
    """Counters and gauges of one decider process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.snapshots = Counter(
            "tidegate_decider_snapshots",
            "Snapshots by outcome: decided, dropped, dead_lettered",
            ["outcome"],
            registry=registry,
        )
        self.results = Counter(
            "tidegate_decider_results",
            "Results by outcome: taken, dropped, dead_lettered",
            ["outcome"],
            registry=registry,
        )
        self.commands = Counter("tidegate_decider_commands", "Commands by kind", ["kind"], registry=registry)
        self.reservations = Counter(
            "tidegate_decider_reservations", "Requested reservations by answer", ["answer"], registry=registry
        )
        self.states_lost = Counter(
            "tidegate_decider_states_lost", "States in the changelog that could not be read", registry=registry
        )
        self.rebuilds = Counter("tidegate_decider_rebuilds", "Rebuilds of Redis from the topics", registry=registry)
        self.decide_seconds = Histogram(
            "tidegate_decider_decide_seconds",
            "Time from a snapshot to its stored state",
            buckets=BUCKETS,
            registry=registry,
        )
        self.lag_records = Gauge(
            "tidegate_decider_lag_records", "Snapshots and results not yet handled on own partitions", registry=registry
        )
