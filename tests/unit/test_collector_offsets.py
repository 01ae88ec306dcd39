"""Offsets of a cluster in which one broker of several does not answer; the rest is tested with a real broker."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from tests.support.events import START
from tests.support.set_clock import SetClock


class HangingLeader:
    """Answers like librdkafka's client if the leader of partition 1 hangs: late, and with an offset of -1001."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.asked: list[int] = []
        """How many partitions each request for offsets had."""

    def poll(self, _timeout: float) -> None:
        """Do nothing."""

    def describe_topics(self, topics: Any, request_timeout: float) -> Mapping[str, Future[Any]]:
        """Return two partitions for each topic, both with a leader."""
        self.timeouts.append(request_timeout)
        partitions = [SimpleNamespace(id=number, leader=object()) for number in (0, 1)]
        return {topic: _done(SimpleNamespace(partitions=partitions)) for topic in topics.topic_names}

    def list_offsets(
        self, asked: Mapping[TopicPartition, Any], *, request_timeout: float, **_options: Any
    ) -> Mapping[TopicPartition, Future[Any]]:
        """Return an offset for each partition."""
        self.timeouts.append(request_timeout)
        self.asked.append(len(asked))
        return {each: _done(SimpleNamespace(offset=-1001 if each.partition else 7)) for each in asked}


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def test_partitions_of_a_leader_that_hangs_are_unknown_and_cost_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """What others have answered is there before the caller gives up, the rest is unknown, and the log says so once."""
    offsets, admin = KafkaOffsets(CollectorSettings(bootstrap_servers="127.0.0.1:1"), 3.0), HangingLeader()
    offsets._admin = admin
    for _ in range(2):
        ends = offsets.end_offsets(["orders"])
        assert ends == {"orders": (7, None)}
    assert offsets.first_offsets(ends) == {"orders": (7, None)}
    assert max(admin.timeouts) < 3.0
    assert caplog.text.count("no offsets of topic orders") == 1


def test_a_topic_that_no_job_reads_any_more_is_forgotten(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a job reads it again, the log says again that it has no offsets; while one does, once is enough."""
    clock = SetClock()
    monkeypatch.setattr("services.collector.offsets.time", clock)
    offsets, admin = KafkaOffsets(CollectorSettings(bootstrap_servers="127.0.0.1:1"), 3.0), HangingLeader()
    offsets._admin = admin
    for hours in (0.0, 0.9, 1.8, 3.0):
        clock.at = START + timedelta(hours=hours)
        offsets.end_offsets(["orders"] if hours != 0.9 else ["orders", "other"])
    assert caplog.text.count("no offsets of topic orders") == 2
    assert list(offsets._complained) == ["orders (partitions)"]


def test_many_topics_without_offsets_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """When a broker is away, a thousand jobs lose their offsets at once."""
    offsets, admin = KafkaOffsets(CollectorSettings(bootstrap_servers="127.0.0.1:1"), 3.0), HangingLeader()
    offsets._admin = admin
    offsets.end_offsets([f"t{number}" for number in range(1000)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no offsets of topic t0 (partitions), t1 (partitions), t10 (partitions) and 997 more" in line


def test_thousands_of_partitions_are_asked_in_parts() -> None:
    """Of one request, librdkafka's time grows with the square of the partitions; the answers are those of all parts."""
    offsets, admin = KafkaOffsets(CollectorSettings(bootstrap_servers="127.0.0.1:1"), 3.0), HangingLeader()
    offsets._admin = admin
    ends = offsets.end_offsets([f"t{number}" for number in range(700)])
    assert set(ends.values()) == {(7, None)}
    assert len(ends) == 700
    assert sum(admin.asked) == 1400
    assert max(admin.asked) <= 500
