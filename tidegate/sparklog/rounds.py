"""Batches of queries that read the same topics, taken together as rounds.

Each record is work for every query that reads it. A job is done with a record when the last of them is, and a slot does
the work of all. So the capacity is not in the batches of a single query, which count each record once per query, and
whose times overlap or not, as Spark schedules them. It is in rounds: one ends when a batch raises the lowest committed
offsets.

    records   =  growth of the lowest committed offsets
    duration  =  time since the round before in which at least one query was in a batch
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from tidegate.events.snapshot import MicroBatch
from tidegate.sparklog.events import PartitionOffsets

MAX_SPANS = 10_000
"""Stretches of time that are kept while one query commits nothing."""


class Round:
    """The batches since the lowest committed offsets rose last."""

    def __init__(self, since: datetime | None = None) -> None:
        self._since = since
        self._spans: deque[tuple[datetime, datetime]] = deque(maxlen=MAX_SPANS)
        """When somebody was in a batch: stretches that do not touch, oldest first."""
        self._add_batch_seconds = 0.0
        self._output_records: int | None = 0

    def add(self, batch: MicroBatch, finished_at: datetime, records: int) -> MicroBatch | None:
        """Add a batch that raised the lowest committed offsets by `records`; return the round if that ended it."""
        start = batch.started_at if self._since is None else max(batch.started_at, self._since)
        while self._spans and self._spans[-1][1] >= start:
            start = min(start, self._spans.pop()[0])
        self._spans.append((start, max(start, finished_at)))
        self._add_batch_seconds += batch.add_batch_seconds or 0.0
        known = self._output_records is not None and batch.output_records is not None
        self._output_records = (self._output_records or 0) + (batch.output_records or 0) if known else None
        if records <= 0:
            return None
        lasted = sum(((end - start) for start, end in self._spans), timedelta())
        return batch.model_copy(
            update={
                "started_at": finished_at - lasted,
                "duration_seconds": lasted.total_seconds(),
                "add_batch_seconds": min(self._add_batch_seconds, lasted.total_seconds()),
                "input_records": records,
                "output_records": self._output_records,
            }
        )


def growth(before: PartitionOffsets, after: PartitionOffsets, topics: frozenset[str]) -> int:
    """Return by how many records the offsets of topics grew, over the partitions that are in both."""
    return sum(
        offset - before[topic][partition]
        for topic in topics & before.keys() & after.keys()
        for partition, offset in after[topic].items()
        if partition in before[topic]
    )
