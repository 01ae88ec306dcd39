"""End offsets and partitions of the jobs' topics, read from Kafka for all jobs at once.

The engine computes lag (end offset minus committed offset) and arrival rate (growth of the end offsets). Spark's own
figures are not used: without `maxOffsetsPerTrigger` its lag is always 0, and its input rate counts records taken, not
records that arrived. A recreated topic has lower end offsets than before, and a topic with added partitions has more
of them; both are reported as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)

EndOffsets = Mapping[str, tuple[int | None, ...]]
"""Topic to the end offset of each partition; None for an unreadable partition. Topics that do not exist, or that the
broker cannot describe, are left out."""


class KafkaOffsets:
    """Asks the broker over one connection. Blocks; one caller at a time."""

    def __init__(self, settings: ServiceSettings, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._admin = AdminClient({**settings.kafka(), "socket.timeout.ms": max(1000, int(timeout_seconds * 1000))})
        self._complained: set[str] = set()

    def end_offsets(self, topics: Collection[str]) -> EndOffsets:
        """Return the end offsets of `topics` with two requests, however many topics there are.

        Raises `KafkaException` if the broker does not answer in time.
        """
        self._admin.poll(0)  # hands librdkafka's log lines to Python's logging
        if not topics:
            return {}
        partitions = self._partitions(sorted(topics))
        asked = [TopicPartition(t, p) for t, led in partitions.items() for p, has_leader in led.items() if has_leader]
        ends: dict[tuple[str, int], int] = {}
        if asked:
            futures = self._admin.list_offsets(
                {partition: OffsetSpec.latest() for partition in asked},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,  # the log's end, open transactions included
                request_timeout=self._timeout,
            )
            for partition, result in self._results(futures.items()):
                ends[partition.topic, partition.partition] = result.offset
        return {topic: tuple(ends.get((topic, p)) for p in range(len(led))) for topic, led in partitions.items()}

    def _partitions(self, topics: list[str]) -> dict[str, dict[int, bool]]:
        """Return for each existing topic which partitions have a leader; only a leader knows the end offset."""
        futures = self._admin.describe_topics(TopicCollection(topics), request_timeout=self._timeout)
        return {
            topic: {partition.id: partition.leader is not None for partition in description.partitions}
            for topic, description in self._results(futures.items())
        }

    def _results(self, futures: Iterable[tuple[Any, Future[Any]]]) -> Iterable[tuple[Any, Any]]:
        """Return the answers; log topics without an answer once; raise an error if nothing at all was answered."""
        answers: list[tuple[Any, Any]] = []
        answered: set[str] = set()
        errors: dict[str, KafkaError] = {}
        for asked, future in futures:
            name = asked if isinstance(asked, str) else f"{asked.topic} (partitions)"
            try:
                answers.append((asked, future.result(timeout=self._timeout + 1)))
                answered.add(name)
            except KafkaException as error:
                errors[name] = error.args[0]
        for name in errors.keys() - self._complained:
            log.warning("no end offsets of topic %s: %s", name, errors[name].str())
        self._complained = (self._complained - answered) | errors.keys()
        real = [error for error in errors.values() if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART]
        if real and not answers:
            raise KafkaException(real[0])
        return answers
