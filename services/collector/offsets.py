"""End offsets and partitions of the jobs' topics, asked of Kafka for all jobs at once.

Only measured here: lag (end offset minus committed offset) and arrival rate (growth of the end offsets) are the
engine's. Spark's own figures are not used: without `maxOffsetsPerTrigger` its lag is always 0, and its input rate
counts what was taken, not what arrived. A topic that was made anew has lower end offsets than before, a topic with
added partitions has more of them: both are passed on as they are.
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
"""Topic to the end offset of each partition; None for a partition that could not be read. Topics that do not exist,
or could not be described, are not in it."""


class KafkaOffsets:
    """Asks one broker connection; blocking, one caller at a time."""

    def __init__(self, settings: ServiceSettings, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._admin = AdminClient({**settings.kafka(), "socket.timeout.ms": max(1000, int(timeout_seconds * 1000))})
        self._complained: set[str] = set()

    def end_offsets(self, topics: Collection[str]) -> EndOffsets:
        """Return the end offsets of `topics` in two requests, whatever their number.

        Raises `KafkaException` when the broker does not answer in time.
        """
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
        """Return, for each topic that exists, whether each partition has a leader; without one none can be asked."""
        futures = self._admin.describe_topics(TopicCollection(topics), request_timeout=self._timeout)
        return {
            topic: {partition.id: partition.leader is not None for partition in description.partitions}
            for topic, description in self._results(futures.items())
        }

    def _results(self, futures: Iterable[tuple[Any, Future[Any]]]) -> Iterable[tuple[Any, Any]]:
        """Yield the answers that came; raise the error if none came, name each new one once otherwise."""
        answers: list[tuple[Any, Any]] = []
        errors: dict[str, KafkaException] = {}
        for asked, future in futures:
            try:
                answers.append((asked, future.result(timeout=self._timeout + 1)))
            except KafkaException as error:
                errors[str(asked)] = error
        for name in errors.keys() - self._complained:
            log.warning("no end offsets of %s: %s", name, errors[name].args[0].str())
        self._complained = (self._complained - {str(asked) for asked, _ in answers}) | set(errors)
        real = [error for error in errors.values() if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART]
        if real and not answers:
            raise real[0]
        return answers
