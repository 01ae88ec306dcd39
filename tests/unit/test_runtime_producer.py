"""The producer when librdkafka gives up for good; the broker that makes it do so is simulated."""

# ruff: noqa: D102 - Client stands in for a class of confluent_kafka

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from services.decider.outbox import AwaitedProducer
from tests.support.events import job
from tidegate.runtime.producer import NotDelivered
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings

FATAL = KafkaException(KafkaError(KafkaError._FATAL, "out of order sequence number", fatal=True))
LATE = SystemError("returned a result with an exception set")
"""What becomes of it in the report of a delivery."""


class Client:
    """A client of librdkafka that may have met an error from which it does not recover."""

    made: list[Client]

    def __init__(self, _conf: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.made.append(self)

    def produce(self, *_: object, **__: object) -> None:
        self._call("produce")

    def poll(self, seconds: float) -> int:
        time.sleep(min(seconds, 0.01))
        self._call("poll")
        return 0

    def flush(self, _seconds: float) -> int:
        self._call("flush")
        return 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]


@pytest.mark.parametrize(
    ("call", "error"), [("produce", FATAL), ("poll", FATAL), ("flush", FATAL), ("poll", LATE), ("flush", LATE)]
)
def test_a_producer_that_has_failed_for_good_is_replaced(
    call: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has lost its newest records refuses the sequence numbers of an idempotent producer for ever."""
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("tidegate.runtime.producer.Producer", Client)
    publisher = Publisher(ServiceSettings())
    (first,) = Client.made
    first.fails[call] = error
    with pytest.raises(NotDelivered):
        publisher.publish(job())
    publisher.publish(job())
    assert Client.made[1].calls == ["produce", "poll", "flush"]


def test_whoever_waits_for_an_acknowledgement_hears_of_a_failure_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the decider would wait until its watchdog ends it."""
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("tidegate.runtime.producer.Producer", Client)

    async def play() -> None:
        producer = AwaitedProducer(ServiceSettings())
        waiting = asyncio.create_task(producer.send("t", b"k", b"v"))
        await asyncio.sleep(0.05)
        Client.made[0].fails["poll"] = LATE
        with pytest.raises(NotDelivered, match="another one takes its place"):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(play())


def test_a_record_that_is_refused_costs_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a client cannot recover from needs another one."""
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("tidegate.runtime.producer.Producer", Client)
    publisher = Publisher(ServiceSettings())
    Client.made[0].fails["produce"] = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(NotDelivered):
        publisher.publish(job())
    assert len(Client.made) == 1
