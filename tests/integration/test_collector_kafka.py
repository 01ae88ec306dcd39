"""End offsets from a real broker: reported unchanged, in bounded time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from services.collector.delivery import DeliveryQueue
from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from tests.support.events import result, snapshot
from tests.support.provider import StackProvider
from tidegate.events.result import Phase
from tidegate.events.topics import SNAPSHOTS
from tidegate.runtime.consumer import leaders_offsets
from tidegate.runtime.poll import retry, wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import create_topics


class Topics:
    """Data topics of one test."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.settings = CollectorSettings(bootstrap_servers=bootstrap_servers)
        self.admin = AdminClient(self.settings.kafka())
        self.producer = Producer({**self.settings.kafka(), "linger.ms": 0})
        self.prefix = f"h3-{uuid.uuid4().hex[:8]}."
        self.made: set[str] = set()

    def make(self, name: str, partitions: int) -> str:
        """Make a topic and return its full name."""
        full = self.prefix + name
        create_topics(self.admin, [NewTopic(full, partitions, 1)])
        self.made.add(full)
        self.until(full, partitions)
        return full

    def until(self, topic: str, partitions: int) -> None:
        """Wait until the broker shows a topic with that many partitions, and answers for each of them."""

        def shown() -> bool:
            found = self.admin.list_topics(timeout=10).topics.get(topic)
            return (len(found.partitions) if found else 0) == partitions and self._answered(topic, partitions)

        if not wait_until(shown, 20):
            raise TimeoutError(f"{topic} did not get {partitions} partitions")

    def _answered(self, topic: str, partitions: int) -> bool:
        """Return whether the leaders answer; the broker lists them a moment earlier."""
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
        answers = self.admin.list_offsets(asked).values() if asked else []
        return all(answer.exception(timeout=10) is None for answer in answers)

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        for future in self.admin.delete_topics([topic]).values():
            future.result(30)
        self.made.discard(topic)
        self.until(topic, 0)

    def fill(self, topic: str, *records: int) -> None:
        """Produce a number of records to each partition."""
        for partition, count in enumerate(records):
            for _ in range(count):
                self.producer.produce(topic, b"x", partition=partition)
        assert self.producer.flush(30) == 0


@pytest.fixture
def topics(kafka: str) -> Iterator[Topics]:
    """Topics that are deleted at the end."""
    made = Topics(kafka)
    yield made
    for future in made.admin.delete_topics(sorted(made.made)).values() if made.made else ():
        future.result(30)


def test_all_topics_are_asked_at_once(topics: Topics) -> None:
    """One call returns partition counts and end offsets of many topics; a missing topic is left out."""
    one, many = topics.make("one", 1), [topics.make(f"t{number}", 4) for number in range(10)]
    topics.fill(one, 7)
    topics.fill(many[3], 1, 2, 3)
    ends = KafkaOffsets(topics.settings, 10.0).end_offsets([one, *many, topics.prefix + "absent"])
    assert ends == {one: (7,)} | dict.fromkeys(many, (0, 0, 0, 0)) | {many[3]: (1, 2, 3, 0)}


def test_added_partitions_and_a_recreated_topic_are_reported_unchanged(topics: Topics) -> None:
    """More partitions, or lower offsets, are for the engine to judge; the collector reports them unchanged (F40)."""
    offsets = KafkaOffsets(topics.settings, 10.0)
    topic = topics.make("changing", 2)
    topics.fill(topic, 5, 5)
    assert offsets.end_offsets([topic]) == {topic: (5, 5)}
    for future in topics.admin.create_partitions([NewPartitions(topic, 4)]).values():
        future.result(30)
    topics.until(topic, 4)
    assert offsets.end_offsets([topic]) == {topic: (5, 5, 0, 0)}
    topics.remove(topic)
    assert offsets.end_offsets([topic]) == {}
    topics.make("changing", 3)
    topics.fill(topic, 1)
    assert offsets.end_offsets([topic]) == {topic: (1, 0, 0)}


def test_an_open_transaction_ends_a_topic_for_readers_of_what_is_committed(topics: Topics) -> None:
    """Spark reads up to the last stable offset with `read_committed`, and beyond it without; so does the lag count."""
    offsets = KafkaOffsets(topics.settings, 10.0)
    topic = topics.make("transactional", 1)
    producer = Producer({**topics.settings.kafka(), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    assert offsets.end_offsets([topic]) == {topic: (1,)}
    assert offsets.end_offsets([topic], read_committed=True) == {topic: (0,)}
    producer.commit_transaction(30)

    def both_end_behind_the_marker() -> bool:
        both = [offsets.end_offsets([topic]), offsets.end_offsets([topic], read_committed=True)]
        return both == [{topic: (2,)}] * 2

    assert wait_until(both_end_behind_the_marker, 10)


def test_removed_records_raise_the_first_offsets(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was deleted is not there to be read; the first offsets are asked now and then, and hold in between."""
    offsets = KafkaOffsets(topics.settings, 10.0)
    topic = topics.make("removed", 2)
    topics.fill(topic, 9, 9)
    ends = offsets.end_offsets([topic])
    assert offsets.first_offsets(ends) == {topic: (0, 0)}
    for future in topics.admin.delete_records([TopicPartition(topic, 1, 4)]).values():
        future.result(30)
    assert offsets.first_offsets(ends) == {topic: (0, 0)}, "not asked again"
    monkeypatch.setattr("services.collector.offsets.FIRST_SECONDS", 0.0)
    assert offsets.first_offsets(ends) == {topic: (0, 4)}
    assert offsets.end_offsets([topic]) == {topic: (9, 9)}
    monkeypatch.setattr("services.collector.offsets.FORGET_SECONDS", -1.0)
    assert offsets.first_offsets({}) == {}
    assert offsets._firsts == {}


def test_not_too_many_topics_are_asked_at_once(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics that were not asked for the longest time come first, so that all have their turn."""
    monkeypatch.setattr("services.collector.offsets.FIRST_PARTITIONS", 1)
    monkeypatch.setattr("services.collector.offsets.FIRST_SECONDS", 0.0)
    offsets = KafkaOffsets(topics.settings, 10.0)
    one, two = topics.make("one", 2), topics.make("two", 2)
    ends = offsets.end_offsets([one, two])
    assert list(offsets.first_offsets(ends)) == [one]
    assert list(offsets.first_offsets(ends)) == [one, two]


def test_a_broker_that_stops_answering_is_no_offset(
    topics: Topics, stack: StackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaders are known and hang: librdkafka gives offsets below 0 for an answer, and no error."""
    offsets = KafkaOffsets(topics.settings, 2.0)
    topic = topics.make("hanging", 2)
    topics.fill(topic, 3, 3)
    assert retry(lambda: offsets.end_offsets([topic]), KafkaException) == {topic: (3, 3)}
    monkeypatch.setattr(offsets, "_partitions", lambda _topics: {topic: {0: True, 1: True}})
    waits: list[float] = []

    def ask(*asked: Any, timeout_seconds: float, **more: Any) -> Any:
        waits.append(timeout_seconds)
        return leaders_offsets(*asked, timeout_seconds=timeout_seconds, **more)

    monkeypatch.setattr("services.collector.offsets.leaders_offsets", ask)
    stack.kafka.pause()
    started = time.monotonic()
    try:
        with pytest.raises(KafkaException):
            offsets.end_offsets([topic])
        assert time.monotonic() - started < 30
    finally:
        stack.kafka.resume()
    assert len(waits) == 1
    assert waits[0] <= 1.8, "in time for those that others lead"


def test_no_topics_are_no_call() -> None:
    """Without jobs there is no call, so a missing broker does not matter."""
    settings = CollectorSettings(bootstrap_servers="127.0.0.1:1")
    assert KafkaOffsets(settings, 1.0).end_offsets([]) == {}


def test_a_broker_that_is_not_there_costs_a_bounded_time() -> None:
    """Without a broker the call fails within its time limit and reports no zeros."""
    offsets = KafkaOffsets(CollectorSettings(bootstrap_servers="127.0.0.1:1"), 1.0)
    started = time.monotonic()
    with pytest.raises((KafkaException, TimeoutError)):
        offsets.end_offsets(["some-topic"])
    assert time.monotonic() - started < 5


def test_what_one_topic_does_not_take_holds_nothing_else_back(kafka: str) -> None:
    """It is not there; a partition without a leader is the same to the client. The rest arrives at once."""
    settings = CollectorSettings(
        bootstrap_servers=kafka, topic_prefix=f"h3-{uuid.uuid4().hex[:8]}.", delivery_timeout_seconds=20.0
    )
    create_topics(AdminClient(settings.kafka()), [NewTopic(SNAPSHOTS.named(settings.topic_prefix), 2, 1)])
    counts = list[tuple[int, int]]()
    queue = DeliveryQueue(Publisher(settings), 100, lambda arrived, lost: counts.append((arrived, lost)))
    queue.put([(result("c", Phase.ACCEPTED), None)])
    queue.put([(snapshot(number), None) for number in range(3)])
    assert wait_until(lambda: sum(arrived for arrived, _ in counts) == 3, 60), counts
    assert sum(lost for _, lost in counts) == 0, "before the time of the other one is up"
    assert wait_until(lambda: sum(lost for _, lost in counts) == 1, 40), counts
    queue.close(30)
    assert sum(arrived for arrived, _ in counts) == 3
