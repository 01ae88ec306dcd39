"""Kafka as every service uses it: one way to publish, one way to consume in a group, one way to read a whole topic.

librdkafka's defaults that lose or misplace events are changed here and nowhere else: the partitioner is Java's
murmur2 (Faust and Spark use it; librdkafka's own would put a pipeline's events on another partition), producers are
idempotent, groups begin at the earliest offset, and offsets are stored only when the caller says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from operator import methodcaller
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Headers, Record, encode
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.runtime.dead_letters import bare
from tidegate.runtime.settings import ServiceSettings


def producer_config(settings: ServiceSettings) -> dict[str, str | float]:
    """Return librdkafka's settings of a producer whose records arrive once, in order, on the partition of their key."""
    return {
        **settings.kafka(),
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "linger.ms": 2,
        "delivery.timeout.ms": int(settings.delivery_timeout_seconds * 1000),
    }


class NotDelivered(RuntimeError):
    """The broker did not acknowledge an event in time; nothing that depends on it may be committed."""


class Publisher:
    """Publishes events. `publish` returns only when the broker has acknowledged; `send` and `flush` do it in bulk."""

    def __init__(self, settings: ServiceSettings, **overrides: str | float) -> None:
        self._prefix = settings.topic_prefix
        self._timeout = settings.delivery_timeout_seconds
        self._failed: list[str] = []
        self._producer = Producer(producer_config(settings) | overrides)

    def send(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Hand an event to the producer; `flush` tells whether it arrived. A dead letter too large goes bare."""
        try:
            self.send_record(encode(event, key=key, trace_id=trace_id))
        except KafkaException as error:
            if not isinstance(event, DeadLetter) or error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            self.send_record(encode(bare(event), trace_id=trace_id))

    def send_record(self, record: Record) -> None:
        """Hand an encoded event to the producer."""
        self._produce(record.topic.named(self._prefix), record.key, record.value, record.headers)

    def send_raw(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> None:
        """Hand a record to the producer as it is, under a whole topic name, with Kafka's timestamp if one is given."""
        self._produce(topic, key or b"", value, list(headers), timestamp_ms)

    def tombstone(self, topic: str, key: bytes) -> None:
        """Publish a null value for a key of a compacted topic and wait for the acknowledgement."""
        self._produce(topic, key, None, [])
        self.flush()

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish one event and wait for its acknowledgement; raise `NotDelivered` otherwise."""
        self.send(event, key=key, trace_id=trace_id)
        self.flush()

    def flush(self) -> None:
        """Wait until everything sent is acknowledged; raise `NotDelivered` naming what was not."""
        left = self._producer.flush(self._timeout + 1)
        failed, self._failed = self._failed, []
        if left or failed:
            raise NotDelivered("; ".join(failed) or f"{left} events not acknowledged after {self._timeout:g} s")

    def close(self) -> None:
        """Deliver what is left, for at most the delivery timeout."""
        self.flush()

    def _produce(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        at: int | None = None,
    ) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._failed.append(f"{topic} key {key!r}: {error.str()}")

        stamp = {} if at is None else {"timestamp": at}
        while True:
            try:
                self._producer.produce(topic, value, key or None, headers=list(headers), on_delivery=delivered, **stamp)
            except BufferError:  # the local queue is full: give the broker time to take some
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return


def group_consumer(settings: ServiceSettings, group: str, **overrides: Any) -> Consumer:
    """Return a consumer of a group that skips nothing: earliest when new, offsets stored by the caller."""
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


def headers_of(message: Message) -> Headers | None:
    """Return a record's headers; none where a name is not UTF-8.

    For such a record the client returns a broken list and leaves an error behind, which shows at once as SystemError
    only in a call from C; what would be looked at later crashes the process.
    """
    try:
        return cast("Headers | None", _headers(message))
    except SystemError:
        message.set_headers([])
        return None


class TopicReader:
    """Reads whole topics without a group: every partition from the beginning (or an instant), then on as they grow."""

    def __init__(self, settings: ServiceSettings, topics: Sequence[str], *, since: datetime | None = None) -> None:
        self._consumer = Consumer(
            {
                **settings.kafka(),
                "group.id": "tidegate-reader",  # never joined or committed: partitions are assigned by hand
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,  # the end of a topic is told by an empty fetch, so as late as it may wait
                "auto.offset.reset": "earliest",
            }
        )
        partitions = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in self._partitions(t)]
        if since is not None:
            at = int(since.timestamp() * 1000)
            asked = [TopicPartition(p.topic, p.partition, at) for p in partitions]
            partitions = self._consumer.offsets_for_times(asked, timeout=30)
        self._unread = {(p.topic, p.partition) for p in partitions}
        self._consumer.assign(partitions)

    def _partitions(self, topic: str) -> Iterable[int]:
        found = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return list(found.partitions)

    @property
    def at_end(self) -> bool:
        """Whether every partition has been read to the end it had when it was reached."""
        return not self._unread

    def poll(self, seconds: float = 0.0) -> Message | None:
        """Return the next record, or None when there is none within `seconds`."""
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

    def read_to_end(self, timeout_seconds: float = 60.0) -> Iterator[Message]:
        """Yield every record up to the present end; raise `TimeoutError` when that cannot be reached in time."""
        deadline = time.monotonic() + timeout_seconds
        while not self.at_end:
            message = self.poll(0.1)
            if message is not None:
                yield message
            elif time.monotonic() > deadline:
                raise TimeoutError(f"could not read {sorted(self._unread)} to the end in {timeout_seconds:g} s")

    def follow(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Message]:
        """Yield records as they come until `stop()` is true."""
        while not stop():
            message = self.poll(0.25)
            if message is not None:
                yield message

    def close(self) -> None:
        """Give the connection back."""
        self._consumer.close()


def ensure_topics(settings: ServiceSettings, *, partitions: int = 8, replication: int = 1) -> list[str]:
    """Create the Tidegate topics that do not exist; return the names of those created.

    Raises `KafkaException` where no broker answers, `TopicsDoNotFit` where those that exist cannot carry the flow.
    """
    admin = AdminClient(settings.kafka())
    admin.list_topics(timeout=10)  # where no broker answers, this says so sooner
    wanted = [
        NewTopic(
            topic.named(settings.topic_prefix),
            num_partitions=partitions,
            replication_factor=replication,
            config={"cleanup.policy": topic.cleanup}
            | ({"retention.ms": str(topic.retention_days * 86_400_000)} if topic.retention_days else {}),
        )
        for topic in TOPICS
    ]
    created = []
    for name, future in admin.create_topics(wanted, request_timeout=30).items():
        try:
            future.result(timeout=40)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    _await_leaders(settings)
    return created


def _await_leaders(settings: ServiceSettings, timeout_seconds: float = 30.0) -> None:
    """Return when the topics can be seen; a broker lists what it has just made only a moment later."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            check_topics(settings)
        except TopicsDoNotFit:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


class TopicsDoNotFit(RuntimeError):
    """The broker's topics cannot carry the flow; the text says which and why."""


def check_topics(settings: ServiceSettings) -> int:
    """Return the partition count shared by the pipeline topics, or raise `TopicsDoNotFit`.

    One worker handles a pipeline in order only if a key lies on the same partition of every topic.
    """
    found = AdminClient(settings.kafka()).list_topics(timeout=30).topics
    found = {name: topic for name, topic in found.items() if topic.error is None and topic.partitions}
    names = [topic.named(settings.topic_prefix) for topic in TOPICS]
    absent = [name for name in names if name not in found]
    if absent:
        raise TopicsDoNotFit(f"topics {', '.join(absent)} do not exist at {settings.bootstrap_servers}")
    counts = {
        t.named(settings.topic_prefix): len(found[t.named(settings.topic_prefix)].partitions)
        for t in TOPICS
        if t.key == "pipeline_id"
    }
    if len(set(counts.values())) > 1:
        raise TopicsDoNotFit(f"the pipeline topics must have the same number of partitions, found {counts}")
    return next(iter(counts.values()))
