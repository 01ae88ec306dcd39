"""End offsets, first offsets and partitions of the jobs' topics, read from Kafka for all jobs at once.

The engine computes lag (end offset minus committed offset) and arrival rate (growth of the end offsets). Spark's own
figures are not used: without `maxOffsetsPerTrigger` its lag is always 0, and its input rate counts records taken, not
records that arrived. A recreated topic has lower end offsets than before, and a topic with added partitions has more
of them; both are reported as they are.

The first offset of a partition rises when retention, or somebody's request, removes records. That is rare, and asking
takes as long as for the end offsets. So each topic is asked for it about twice a minute, and not too many topics at
once. In between, the known ones hold: they are lower bounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from math import inf
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.runtime.consumer import Partition, answer_of, leaders_offsets
from tidegate.runtime.settings import KafkaConnection

log = logging.getLogger(__name__)

Asked = TypeVar("Asked", str, Partition)
T = TypeVar("T")

TopicOffsets = Mapping[str, tuple[int | None, ...]]
"""Topic to an offset of each partition; None for an unreadable partition. Topics that do not exist, or that the broker
cannot describe, are left out."""

ANSWER_SHARE = 0.9
"""Share of the caller's time limit after which what has been answered counts: librdkafka hands over the answers of all
brokers at once, when the last one has answered or is too late, and then the caller must still be waiting."""
FIRST_SECONDS = 30.0
"""How long the first offsets of a topic hold."""
FIRST_PARTITIONS = 2000
"""Of about so many partitions the first offsets are asked at once."""
NAMED = 3
"""How many topics a line of the log names."""
FORGET_SECONDS = 3600.0
"""After this long without being asked about it, a topic is forgotten."""


class KafkaOffsets:
    """Asks a cluster over one connection. Blocks; one caller at a time."""

    def __init__(self, connection: KafkaConnection, timeout_seconds: float) -> None:
        self._timeout = ANSWER_SHARE * timeout_seconds
        self._admin = AdminClient({**connection.kafka(), "socket.timeout.ms": max(1000, int(timeout_seconds * 1000))})
        self._complained: dict[str, float] = {}
        """Topics that had no answer, and when, by the monotonic clock."""
        self._firsts: dict[str, dict[int, int]] = {}
        self._asked_at: dict[str, float] = {}
        """When the first offsets of each topic were asked, by the monotonic clock."""

    def end_offsets(self, topics: Collection[str], *, read_committed: bool = False) -> TopicOffsets:
        """Return the end offsets of `topics` with two requests, however many topics there are.

        With `read_committed`, a partition ends before its first open transaction: its last stable offset.
        Raises `KafkaException` if the broker does not answer in time.
        """
        self._admin.poll(0)  # hands librdkafka's log lines to Python's logging
        if not topics:
            return {}
        deadline = time.monotonic() + self._timeout
        partitions = self._partitions(sorted(topics))
        asked = [TopicPartition(t, p) for t, led in partitions.items() for p, has_leader in led.items() if has_leader]
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        ends = self._offsets(asked, OffsetSpec.latest(), deadline - time.monotonic(), level)
        return {topic: tuple(ends.get((topic, p)) for p in range(len(led))) for topic, led in partitions.items()}

    def first_offsets(self, ends: TopicOffsets) -> TopicOffsets:
        """Return the first offsets of topics whose end offsets are given, as far as they are known.

        They may be half a minute old. Raises `KafkaException` if the broker does not answer in time.
        """
        now, asked = time.monotonic(), list[TopicPartition]()
        due = [topic for topic in ends if now - self._asked_at.get(topic, -inf) >= FIRST_SECONDS]
        for topic in sorted(due, key=lambda topic: self._asked_at.get(topic, -inf)):
            if len(asked) < FIRST_PARTITIONS:
                asked += [TopicPartition(topic, p) for p, end in enumerate(ends[topic]) if end is not None]
                self._asked_at[topic] = now
        for (topic, partition), offset in self._offsets(asked, OffsetSpec.earliest(), self._timeout).items():
            self._firsts.setdefault(topic, {})[partition] = offset
        for topic in [topic for topic, at in self._asked_at.items() if now - at > FORGET_SECONDS]:
            del self._asked_at[topic]
            self._firsts.pop(topic, None)
        known = {topic: self._firsts[topic] for topic in ends if topic in self._firsts}
        return {topic: tuple(map(firsts.get, range(len(ends[topic])))) for topic, firsts in known.items()}

    def _offsets(
        self,
        asked: list[TopicPartition],
        spec: OffsetSpec,
        timeout_seconds: float,
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Partition, int]:
        """Return the offsets of partitions whose leaders answer in time."""
        seconds = max(0.1, timeout_seconds)
        return self._answered(leaders_offsets(self._admin, asked, spec, timeout_seconds=seconds, level=level))

    def _partitions(self, topics: list[str]) -> dict[str, dict[int, bool]]:
        """Return for each existing topic which partitions have a leader; only a leader knows the end offset."""
        requests = self._admin.describe_topics(TopicCollection(topics), request_timeout=self._timeout)
        answers = {topic: answer_of(request, self._timeout + 1) for topic, request in requests.items()}
        return {
            topic: {partition.id: partition.leader is not None for partition in description.partitions}
            for topic, description in self._answered(answers).items()
        }

    def _answered(self, answers: Mapping[Asked, T | KafkaError]) -> dict[Asked, T]:
        """Return the answers; log topics without an answer once; raise an error if nothing at all was answered."""
        found: dict[Asked, T] = {}
        answered: set[str] = set()
        errors: dict[str, KafkaError] = {}
        for asked, answer in answers.items():
            name = asked if isinstance(asked, str) else f"{asked[0]} (partitions)"
            if isinstance(answer, KafkaError):
                errors[name] = answer
            else:
                found[asked] = answer
                answered.add(name)
        now = time.monotonic()
        known = {name: at for name, at in self._complained.items() if now - at <= FORGET_SECONDS}
        if fresh := sorted(errors.keys() - known.keys()):
            more = f" and {len(fresh) - NAMED} more" if len(fresh) > NAMED else ""
            log.warning("no offsets of topic %s%s: %s", ", ".join(fresh[:NAMED]), more, errors[fresh[0]].str())
        self._complained = {name: at for name, at in known.items() if name not in answered} | dict.fromkeys(errors, now)
        real = [error for error in errors.values() if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART]
        if real and not found:
            raise KafkaException(real[0])
        return found
