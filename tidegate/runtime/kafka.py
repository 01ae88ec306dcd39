"""Kafka as every service uses it: one way to publish, to consume in a group, to read a whole topic, to check topics.

Some of librdkafka's defaults lose or misplace events. They are changed here and in `producer.py`, and nowhere else:
producers use Java's murmur2 partitioner (as Faust and Spark do; librdkafka's own picks another partition for the same
key) and are idempotent, consumer groups start at the earliest offset, and only the caller stores offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from operator import methodcaller
from typing import Any, TypeVar, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Headers, Record, encode
from tidegate.events.topics import TOPICS, Topic
from tidegate.events.wire import Wire
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.dead_letters import ConsumedRecord, without_bytes
from tidegate.runtime.poll import poll_until
from tidegate.runtime.producer import NotDelivered, RecordProducer, TooLarge
from tidegate.runtime.settings import ServiceSettings

T = TypeVar("T")
_AnyHeaders = Sequence[tuple[str, bytes | None]]


class Publisher:
    """Publishes events: `publish` waits for the acknowledgement of one event, `send` and `flush` work in bulk."""

    def __init__(self, settings: ServiceSettings, **overrides: str | float) -> None:
        self._prefix = settings.topic_prefix
        self._timeout = settings.delivery_timeout_seconds
        self._failed: list[str] = []
        self._producer = RecordProducer(settings, **overrides)

    def send(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Queue an event; `flush` tells whether it arrived. A dead letter that is too large goes without its bytes."""
        try:
            self._send(encode(event, key=key, trace_id=trace_id))
        except TooLarge:
            if not isinstance(event, DeadLetter):
                raise
            self._send(encode(without_bytes(event), trace_id=trace_id))

    def send_raw(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a record unchanged under a full topic name, with a timestamp of its own if one is given."""
        self._produce(topic, key, value, list(headers), timestamp_ms)

    def tombstone(self, topic: str, key: bytes) -> None:
        """Publish a null value for a key of a compacted topic; wait for the acknowledgement."""
        self._produce(topic, key, None, [])
        self.flush()

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish one event and wait for its acknowledgement; raise `NotDelivered` if it does not come."""
        self.send(event, key=key, trace_id=trace_id)
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has acknowledged every record; otherwise raise `NotDelivered` with the failed ones."""
        left = self._producer.flush(self._timeout + 1)
        failed, self._failed = self._failed, []
        if left or failed:
            raise NotDelivered("; ".join(failed) or f"{left} events not acknowledged after {self._timeout:g} s")

    def _send(self, record: Record) -> None:
        self._produce(record.topic.named(self._prefix), record.key, record.value, record.headers)

    def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: _AnyHeaders, timestamp_ms: int | None = None
    ) -> None:
        def delivered(error: NotDelivered | None) -> None:
            if error is not None:
                self._failed.append(str(error))

        place = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        self._producer.produce(topic, key, value, headers, delivered, **place)
        self._producer.poll(0)


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

    return _retry(ask, _NotLedYet, timeout_seconds=timeout_seconds, every=every)


class TopicReader:
    """Reads whole topics without a group: each partition from its beginning (or an instant), then new records."""

    def __init__(self, settings: ServiceSettings, topics: Sequence[str], *, since: datetime | None = None) -> None:
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
        partitions = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in self._partitions(t)]
        if since is not None:
            asked, at = partitions, int(since.timestamp() * 1000)
            partitions = _once_led(lambda: self._first_at(at, asked), timeout_seconds=30.0, every=0.1)
        self._unread = {(p.topic, p.partition) for p in partitions}
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

    def read_to_end(self, silence_seconds: float = 60.0) -> Iterator[Message]:
        """Yield every record up to the end; raise `TimeoutError` if for so long nothing more comes."""
        deadline = time.monotonic() + silence_seconds
        while not self.at_end:
            message = self.poll(0.1)
            if message is not None:
                yield message
                deadline = time.monotonic() + silence_seconds
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{sorted(self._unread)}: nothing came for {silence_seconds:g} s before the end")

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def offset_ranges(settings: ServiceSettings, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first offset and the end of each partition of these topics, by full topic name and partition.

    Waits while a new partition has no leader yet. Raises `KafkaException` if a topic cannot be read.
    """
    admin, partitions = AdminClient(settings.kafka()), []
    for name in topics:
        found = admin.list_topics(name, timeout=30).topics[name]
        if found.error is not None:
            raise KafkaException(found.error)
        partitions += [TopicPartition(name, number) for number in sorted(found.partitions)]

    def asked(spec: OffsetSpec) -> dict[tuple[str, int], int]:
        answers = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=30)
        return {(p.topic, p.partition): answer.result(timeout=30).offset for p, answer in answers.items()}

    def both() -> dict[tuple[str, int], tuple[int, int]]:
        first, end = asked(OffsetSpec.earliest()), asked(OffsetSpec.latest())
        return {place: (first[place], end[place]) for place in first}

    if not partitions:
        return {}
    return _once_led(both, timeout_seconds=60.0, every=0.2)


class TopicsDoNotFit(RuntimeError):
    """The broker's topics do not fit Tidegate; the text says which and why."""


def ensure_topics(
    settings: ServiceSettings, *, partitions: int = 8, replication: int = 1, for_ever: bool = False
) -> list[str]:
    """Create the missing Tidegate topics; return their names. With `for_ever`, they keep records of any age.

    Raises `KafkaException` if no broker answers, `TopicsDoNotFit` if existing topics do not fit.
    """
    admin = AdminClient(settings.kafka())
    _partition_counts(admin, timeout_seconds=10)  # without a broker this fails sooner than the request below
    wanted = [
        NewTopic(
            topic.named(settings.topic_prefix),
            num_partitions=partitions,
            replication_factor=replication,
            config={"cleanup.policy": topic.cleanup} | _retention(topic, for_ever=for_ever),
        )
        for topic in TOPICS
    ]
    created = create_topics(admin, wanted)
    # The broker lists new topics only a moment after it has created them.
    _retry(lambda: check_topics(settings), TopicsDoNotFit, every=0.1)
    return created


def _retention(topic: Topic, *, for_ever: bool) -> dict[str, str]:
    if topic.retention_days is None:
        return {}
    return {"retention.ms": "-1" if for_ever else str(topic.retention_days * 86_400_000)}


def kept_ms(settings: ServiceSettings, names: Iterable[str]) -> dict[str, int]:
    """Return how long each topic keeps a record, in milliseconds, without those that keep records of any age.

    Also without all of them if the broker does not let this client see their configuration.
    """
    admin = AdminClient(settings.kafka())  # its answers come only while it lives
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    kept: dict[str, int] = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=30).items():
        try:
            config = answer.result(timeout=40)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                continue
            raise
        retention = int(config["retention.ms"].value)
        if "delete" in config["cleanup.policy"].value and retention >= 0:
            kept[resource.name] = retention
    return kept


def create_topics(admin: AdminClient, wanted: list[NewTopic]) -> list[str]:
    """Create those topics that do not exist yet; return their names."""
    created = []
    for name, future in admin.create_topics(wanted, request_timeout=30).items():
        try:
            future.result(timeout=40)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def check_topics(settings: ServiceSettings) -> int:
    """Return the number of partitions of the pipeline topics; raise `TopicsDoNotFit` if they differ or are missing.

    One worker can handle a pipeline in order only if its key is on the same partition of every topic.
    """
    found = _partition_counts(AdminClient(settings.kafka()))
    names = [topic.named(settings.topic_prefix) for topic in TOPICS]
    missing = [name for name in names if name not in found]
    if missing:
        raise TopicsDoNotFit(f"topics {', '.join(missing)} do not exist at {settings.bootstrap_servers}")
    pipelines = [topic.named(settings.topic_prefix) for topic in TOPICS if topic.key == "pipeline_id"]
    counts = {name: found[name] for name in pipelines}
    if len(set(counts.values())) > 1:
        raise TopicsDoNotFit(f"the pipeline topics must have the same number of partitions, found {counts}")
    return next(iter(counts.values()))


def _partition_counts(admin: AdminClient, timeout_seconds: float = 30.0) -> dict[str, int]:
    """Return the number of partitions of every readable topic.

    Asks in steps of a second: a signal cannot end a longer call into librdkafka.
    """

    def listed() -> ClusterMetadata:
        admin.poll(0)  # hands librdkafka's log lines to Python's logging
        return admin.list_topics(timeout=1.0)

    topics = _retry(listed, KafkaException, timeout_seconds=timeout_seconds).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}


def _retry(action: Callable[[], T], error: type[Exception], *, timeout_seconds: float = 30.0, every: float = 0.0) -> T:
    """Return what `action` returns; repeat it while it raises `error`, and raise that after the timeout."""
    clock = SystemClock()
    return poll_until(action, clock.monotonic() + timeout_seconds, every, clock, retry_on=(error,))
