"""Reading a topic to its end: how long is too long, and what counts as an end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import TopicDescription

from tidegate.events.topics import TOPICS
from tidegate.runtime import consumer, topics
from tidegate.runtime.consumer import TopicReader, offset_ranges
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import topic_ids


class _Clock:
    """A clock that moves when something is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def _reader(monkeypatch: pytest.MonkeyPatch, answers: list[Any], seconds_each: float, leader: int = 1) -> TopicReader:
    """Return a reader of one partition that gets these answers; the last one is its end."""
    clock, reader = _Clock(), TopicReader.__new__(TopicReader)
    reader._unread = {("results", 0)}
    partitions = {0: SimpleNamespace(leader=leader)}
    found = SimpleNamespace(topics={"results": SimpleNamespace(partitions=partitions)})
    monkeypatch.setattr(reader, "_consumer", SimpleNamespace(list_topics=lambda *_, **__: found), raising=False)

    def poll(_seconds: float = 0.0) -> Any:
        clock.now += seconds_each
        answer = answers.pop(0)
        if not answers:
            reader._unread.clear()
        return answer

    monkeypatch.setattr(consumer, "time", clock)
    monkeypatch.setattr(reader, "poll", poll)
    return reader


def test_a_long_topic_is_read_to_its_end_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of records with a pause now and then are no reason to give up: a service would never start."""
    answers = [*(number if number % 7 else None for number in range(1, 120)), 120]
    reader = _reader(monkeypatch, list(answers), 5.0)
    assert list(reader.read_to_end(60.0)) == [answer for answer in answers if answer is not None]


@pytest.mark.parametrize(
    ("leader", "advice"),
    [(1, ""), (-1, "; without a leader, so unreadable: results[0]; start the brokers that have it")],
)
def test_a_topic_whose_end_does_not_come_is_given_up(leader: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader says nothing: after a minute of silence the reader names it, and what to do."""
    reader = _reader(monkeypatch, [1, *[None] * 100], 5.0, leader)
    with pytest.raises(
        TimeoutError, match=rf"^{re.escape(f'results[0]: nothing came for 60 s before the end{advice}')}$"
    ):
        list(reader.read_to_end(60.0))


class _LateLeader:
    """A cluster in which the leader of partition 1 is too late: librdkafka then tells the offset -1001."""

    def list_topics(self, name: str, **_: float) -> Any:
        """Return two partitions."""
        return SimpleNamespace(topics={name: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def list_offsets(self, asked: Mapping[TopicPartition, Any], **_: Any) -> Mapping[TopicPartition, Future[Any]]:
        """Return an offset for each partition."""
        requests = {partition: Future[Any]() for partition in asked}
        for partition, request in requests.items():
            request.set_result(SimpleNamespace(offset=-1001 if partition.partition else 7))
        return requests


def test_a_leader_that_is_late_is_no_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recording or an archive reads up to would be before the beginning, and nobody would notice."""
    monkeypatch.setattr(consumer, "AdminClient", lambda _settings: _LateLeader())
    with pytest.raises(KafkaException, match="a leader did not answer in time"):
        offset_ranges(ServiceSettings(), ["tidegate.results"])


class _Described:
    """A cluster whose first topic was made before Kafka knew ids."""

    def __init__(self, _: object) -> None:
        pass

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        """Answer at once."""
        answers: dict[str, Future[Any]] = {}
        for number, name in enumerate(topics.topic_names):
            answers[name] = Future()
            answers[name].set_result(TopicDescription(name, Uuid(number, 0), is_internal=False, partitions=[]))
        return answers


def test_topics_have_ids_where_the_broker_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive recognises a topic that was created again; without an id there is nothing to compare."""
    monkeypatch.setattr(topics, "AdminClient", _Described)
    found = topic_ids(ServiceSettings(topic_prefix="t."))
    assert list(found) == [topic.suffix for topic in TOPICS[1:]]
    assert len(set(found.values())) == len(found)
