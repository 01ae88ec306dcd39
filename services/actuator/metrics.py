"""The actuator's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidegate.events.topics import COMMANDS, RESULTS
from tidegate.runtime import metrics


class ActuatorMetrics:
    """Counters and gauges of one actuator process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = metrics.ENDED.counter(registry)
        self.running = metrics.RUNNING.gauge(registry)
        self.waiting = metrics.WAITING.gauge(registry)
        self.dead_letters = metrics.dead_letters(registry, COMMANDS, RESULTS)
