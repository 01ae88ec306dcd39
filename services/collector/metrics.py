"""The collector's metrics."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import CollectorRegistry

from tidegate.events.snapshot import MetricSnapshot, Part
from tidegate.events.topics import JOBS
from tidegate.runtime import metrics

SOURCES = ("kafka", "master", "logs", "checkpoints", "jobs topic")
"""The kinds of sources of a round."""


class CollectorMetrics:
    """Counters and gauges of one collector process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = metrics.COLLECTED_JOBS.gauge(registry)
        self.snapshots = metrics.COLLECTED.counter(registry)
        self.missing = metrics.MISSING.counter(registry)
        self.part_at = metrics.PART_AT.gauge(registry)
        self.source_at = metrics.SOURCE_AT.gauge(registry)
        self.source_failures = metrics.SOURCE_FAILURES.counter(registry)
        for kind in SOURCES:  # from zero: a counter that appears with a value shows no increase
            self.source_failures.labels(kind)
        self.delivered = metrics.DELIVERED.counter(registry)
        self.undelivered = metrics.UNDELIVERED.counter(registry)
        self.broken_lines = metrics.BROKEN_LINES.counter(registry)
        self.overdue = metrics.OVERDUE.counter(registry)
        self.round_seconds = metrics.ROUND_SECONDS.histogram(registry)
        self.dead_letters = metrics.dead_letters(registry, JOBS)
        self._measured: set[str] = set()

    def made(self, snapshot: MetricSnapshot) -> None:
        """Count a snapshot, the parts that it lacks, and when the others were measured."""
        self._measured.add(snapshot.job_id)
        self.snapshots.inc()
        for part in Part:
            if part in snapshot.missing:
                self.missing.labels(part.value).inc()
            else:
                self.part_at.labels(snapshot.job_id, part.value).set(snapshot.observed_at.timestamp())

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all other jobs, with their series."""
        self.jobs.set(len(job_ids))
        for job_id in self._measured.difference(job_ids):
            self.part_at.remove_by_labels({"job_id": job_id})
        self._measured.intersection_update(job_ids)
