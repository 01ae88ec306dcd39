"""Reading topics: in a group, or a whole topic from its beginning to its end.

Two of librdkafka's defaults lose events, and are changed here and nowhere else: consumer groups start at the earliest
offset, and only the caller stores offsets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any, TypeVar, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.events.envelope import Headers
from tidegate.runtime.dead_letters import ConsumedRecord
from tidegate.runtime.poll import retry
from tidegate.runtime.settings import ServiceSettings

T = TypeVar("T")
Partition = tuple[str, int]
"""A topic's name and the number of a partition."""


def group_consumer(settings: ServiceSettings, group: str, **overrides: Any) -> Consumer:
    """Return a consumer that skips nothing: new groups start at the earliest offset, the caller stores offsets."""
    return Consumer(
        {
            **settings.kafka(),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 1000,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 3_000,
            "partition.assignment.strategy": "cooperative-sticky",
            **overrides,
        }
    )


_headers = methodcaller("headers")


def record_of(message: Message) -> ConsumedRecord:
    """Return a consumed message as a plain value."""
    return ConsumedRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.key(),
        message.value(),
        tuple(headers_of(message) or ()),
    )


def headers_of(message: Message) -> Headers | None:
    """Return a record's headers, or None if a header's name is not UTF-8.

    For such a record the client returns a broken list with a pending error. A call from C turns that error into a
    SystemError at once; otherwise it would crash the process later.
    """
    try:
        return cast("Headers | None", _headers(message))
    except SystemError:
        message.set_headers([])
        return None


LATEST_TIMESTAMP = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""When the last year of the calendar begins, epoch seconds: a later timestamp of a record counts as this."""


def written_at(message: Message) -> datetime:
    """Return a record's timestamp. Kafka lets it be any number: one that no calendar has becomes the nearest."""
    return datetime.fromtimestamp(min(max(0.0, message.timestamp()[1] / 1000), LATEST_TIMESTAMP), UTC)


_NOT_LED_YET = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)


class _NotLedYet(KafkaException):  # type: ignore[misc]
    """A partition's leader is being made or replaced: unlike fetches, requests for offsets are not repeated."""


def _once_led(question: Callable[[], T], *, timeout_seconds: float, every: float) -> T:
    """Return the answer of the partitions' leaders; ask again while they are being made or replaced."""

    def ask() -> T:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() in _NOT_LED_YET:
                raise _NotLedYet(*error.args) from error
            raise

    return retry(ask, _NotLedYet, timeout_seconds=timeout_seconds, every=every)


def _named(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions))


class TopicReader:
    """Reads whole topics without a group: each partition from its beginning (or an instant), then new records.

    With `after`, an offset by partition, each of these is read from there: what came before was read already. With
    `number`, only that partition of each topic is read.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        topics: Sequence[str],
        *,
        since: datetime | None = None,
        after: Mapping[Partition, int] | None = None,
        number: int | None = None,
    ) -> None:
        self._consumer = Consumer(
            {
                **settings.kafka(),
                "group.id": "tidegate-reader",  # required, but never joined: partitions are assigned by hand
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,  # only an empty fetch shows the end of a topic, so do not wait long for it
                "auto.offset.reset": "earliest",
            }
        )
        known = after or {}
        places = [(topic, each) for topic in topics for each in self._partitions(topic) if number in (None, each)]
        partitions = [TopicPartition(*place, known.get(place, OFFSET_BEGINNING)) for place in places]
        if since is not None:
            asked, at = partitions, int(since.timestamp() * 1000)
            partitions = _once_led(lambda: self._first_at(at, asked), timeout_seconds=30.0, every=0.1)
        self._unread = {(p.topic, p.partition) for p in partitions}
        self.starts: Mapping[Partition, int] = {(p.topic, p.partition): p.offset for p in partitions}
        """The offset from which each partition is read; below 0 for its beginning."""
        self._consumer.assign(partitions)

    def _partitions(self, topic: str) -> Iterable[int]:
        found = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return list(found.partitions)

    def _first_at(self, milliseconds: int, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return each partition with the offset of its first record at or after an instant, or with its end."""
        ends = {(p.topic, p.partition): self._consumer.get_watermark_offsets(p, timeout=30)[1] for p in partitions}
        asked = [TopicPartition(p.topic, p.partition, milliseconds) for p in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=30)
        for refused in (p.error for p in found if p.error is not None):
            raise KafkaException(refused)
        # Where there is no such record, the answer is "the end", which librdkafka looks up only later: records written
        # until then would be lost.
        return [
            TopicPartition(p.topic, p.partition, ends[p.topic, p.partition] if p.offset == OFFSET_END else p.offset)
            for p in found
        ]

    @property
    def at_end(self) -> bool:
        """Whether the reader has reached the end of every partition once."""
        return not self._unread

    def poll(self, seconds: float = 0.0) -> Message | None:
        """Return the next record, or None if none comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                return None
            error = message.error()
            if error is None:
                return message
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            self._unread.discard((message.topic(), message.partition()))
            if self.at_end and seconds == 0.0:
                return None

    def read_to_end(
        self, silence_seconds: float = 60.0, *, follow: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Message]:
        """Yield every record up to the end; raise `TimeoutError` if for so long nothing more comes.

        With `follow`, go on after the end, and wait for ever. Once `stop()` is true, it is over in any case.
        """
        deadline = time.monotonic() + silence_seconds
        while not stop() and (follow or not self.at_end):
            message = self.poll(0.1)
            if message is not None:
                yield message
                deadline = time.monotonic() + silence_seconds
            elif not follow and time.monotonic() > deadline:
                raise TimeoutError(self._silence(silence_seconds))

    def _silence(self, seconds: float) -> str:
        """Return which partitions have not been read to their end, and what to do about those without a leader."""
        text = f"{_named(self._unread)}: nothing came for {seconds:g} s before the end"
        if unled := self._unled():
            text += f"; without a leader, so unreadable: {_named(unled)}; start the brokers that have it"
        return text

    def _unled(self) -> list[Partition]:
        """Return which of the unread partitions have no leader, as far as a broker says."""
        found = []
        with suppress(KafkaException):
            for topic in {topic for topic, _ in self._unread}:
                known = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
                found += [(topic, number) for number, partition in known.items() if partition.leader < 0]
        return [partition for partition in found if partition in self._unread]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def answer_of(request: Future[T], timeout_seconds: float) -> T | KafkaError:
    """Return the answer to a request of an `AdminClient`, or the error."""
    try:
        return request.result(timeout=timeout_seconds)
    except KafkaException as error:
        return cast("KafkaError", error.args[0])
    except TimeoutError:  # the request has a shorter limit, but this process may have been paused
        return KafkaError(KafkaError._TIMED_OUT, "the client did not answer in time")


ASKED_AT_ONCE = 500
"""Partitions of one request for offsets. In librdkafka, the time for a request grows with their square: 12,800 took
2.5 s at once, and 0.6 s in parts."""


def leaders_offsets(
    admin: AdminClient,
    partitions: Iterable[TopicPartition],
    spec: OffsetSpec,
    *,
    timeout_seconds: float,
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Partition, int | KafkaError]:
    """Ask the leader of each partition for an offset; return it, or why the leader does not tell it."""

    def told(request: Future[Any]) -> int | KafkaError:
        answer = answer_of(request, timeout_seconds + 1.0)
        if isinstance(answer, KafkaError):
            return answer
        if answer.offset < 0:  # so librdkafka tells of a leader that was too late
            return KafkaError(KafkaError._TIMED_OUT, "a leader did not answer in time")
        return int(answer.offset)

    asked, requests = list(partitions), dict[TopicPartition, Future[Any]]()
    for first in range(0, len(asked), ASKED_AT_ONCE):
        some = dict.fromkeys(asked[first : first + ASKED_AT_ONCE], spec)
        requests |= admin.list_offsets(some, isolation_level=level, request_timeout=timeout_seconds)
    return {(p.topic, p.partition): told(request) for p, request in requests.items()}


def all_told(offsets: Mapping[Partition, int | KafkaError]) -> dict[Partition, int]:
    """Return the leaders' offsets; raise `KafkaException` if one is missing."""
    for offset in offsets.values():
        if isinstance(offset, KafkaError):
            raise KafkaException(offset)
    return cast("dict[Partition, int]", offsets)


def offset_ranges(settings: ServiceSettings, topics: Sequence[str]) -> dict[Partition, tuple[int, int]]:
    """Return the first offset and the end of each partition of these topics, by full topic name and partition.

    Waits while a new partition has no leader yet. Raises `KafkaException` if a topic is unreadable or a leader late.
    """
    admin, partitions = AdminClient(settings.kafka()), []
    for name in topics:
        found = admin.list_topics(name, timeout=30).topics[name]
        if found.error is not None:
            raise KafkaException(found.error)
        partitions += [TopicPartition(name, number) for number in sorted(found.partitions)]

    def asked(spec: OffsetSpec) -> dict[Partition, int]:
        return all_told(leaders_offsets(admin, partitions, spec, timeout_seconds=30.0))

    def both() -> dict[Partition, tuple[int, int]]:
        first, end = asked(OffsetSpec.earliest()), asked(OffsetSpec.latest())
        return {place: (first[place], end[place]) for place in first}

    return _once_led(both, timeout_seconds=60.0, every=0.2)


def newest_at(settings: ServiceSettings, topic: str) -> datetime | None:
    """Return when the last record of any partition was written; None if there is none.

    The records are read, since Kafka 2.8 takes a request for the newest timestamp as one for the oldest. Raises
    `KafkaException` if the topic is unreadable or a leader late.
    """
    last = {place: max(first, end - 1) for place, (first, end) in offset_ranges(settings, [topic]).items()}
    with closing(TopicReader(settings, [topic], after=last)) as reader:
        return max((written_at(message) for message in reader.read_to_end()), default=None)


def spark_offsets(offsets: Mapping[Partition, int]) -> str:
    """Return offsets as Spark's Kafka source takes them, as `startingOffsets` or `endingOffsets`."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[partition] = offset
    return json.dumps(by_topic)
