"""The producer when librdkafka gives up for good; the broker that makes it do so is simulated."""

# ruff: noqa: D102 - Client stands in for a class of confluent_kafka

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from services.decider.faust_app import new_app
from services.decider.outbox import AwaitedProducer
from services.decider.settings import DeciderSettings
from tests.support.events import job
from tests.support.fake_time import fake_time
from tidegate.runtime.poll import wait_until
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
        self.hangs: set[bytes] = set()
        """Keys of the records that a broker neither takes nor refuses."""
        self.made.append(self)
        self._hung: dict[bytes, Callable[[KafkaError | None, None], None]] = {}
        self._sent: list[Callable[[KafkaError | None, None], None]] = []

    def produce(self, _topic: str, _value: bytes, key: bytes, **record: Any) -> None:
        self._call("produce")
        self._hung[key] = record["on_delivery"]
        if key not in self.hangs:
            self.reports(key)

    def reports(self, key: bytes) -> None:
        self._sent.append(self._hung.pop(key))

    def poll(self, seconds: float) -> int:
        time.sleep(min(seconds, 0.01))
        self._call("poll")
        while self._sent:
            self._sent.pop(0)(None, None)
        return 0

    def flush(self, _seconds: float) -> int:
        self._call("flush")
        return 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr("tidegate.runtime.producer.Producer", Client)


@pytest.mark.parametrize(
    ("call", "error"), [("produce", FATAL), ("poll", FATAL), ("flush", FATAL), ("poll", LATE), ("flush", LATE)]
)
def test_a_producer_that_has_failed_for_good_is_replaced(call: str, error: Exception) -> None:
    """A broker that has lost its newest records refuses the sequence numbers of an idempotent producer for ever."""
    publisher = Publisher(ServiceSettings())
    (first,) = Client.made
    first.fails[call] = error

    def send() -> None:
        publisher.send(job())
        publisher.flush()

    with pytest.raises(NotDelivered):
        send()
    send()
    assert Client.made[1].calls == ["produce", "poll", "flush"]


def test_a_flush_that_fails_leaves_nothing_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of the next one arrive: the collector would count them as lost, the operator publish them again."""
    publisher = Publisher(ServiceSettings())
    (first,) = Client.made
    first.hangs.add(b"lost")

    def fails(_seconds: float) -> int:
        first._hung.pop(b"lost")(FATAL.args[0], None)
        raise FATAL

    monkeypatch.setattr(first, "flush", fails)
    publisher.send(job("lost"))
    with pytest.raises(NotDelivered):
        publisher.flush()
    publisher.send(job("next"))
    publisher.flush()


def test_nobody_waits_for_the_record_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actuator's commands publish side by side; one whose broker hangs must not hold up all the others."""
    now = [0.0]
    fake_time(monkeypatch, "tidegate.runtime.publisher", monotonic=lambda: now[0])
    publisher = Publisher(ServiceSettings(delivery_timeout_seconds=1.0))
    (client,) = Client.made
    client.hangs.add(b"slow")
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(publisher.publish, job("slow"))
        assert wait_until(lambda: "poll" in client.calls, 30, 0.01)
        publisher.publish(job("quick"))
        assert not slow.done()
        now[0] = 2.1
        with pytest.raises(NotDelivered, match="not acknowledged after 1 s"):
            slow.result(30)


def test_whoever_waits_for_an_acknowledgement_hears_of_a_failure_for_good() -> None:
    """Else the decider would wait until its watchdog ends it."""

    async def play() -> None:
        producer = AwaitedProducer(ServiceSettings())
        Client.made[0].hangs.add(b"k")
        waiting = asyncio.create_task(producer.send("t", b"k", b"v"))
        await asyncio.sleep(0.05)
        Client.made[0].fails["poll"] = LATE
        with pytest.raises(NotDelivered, match="another one takes its place"):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(play())


def test_a_report_that_nobody_waits_for_stops_no_others() -> None:
    """The loop of its sender may have ended by then; whoever sends next still hears of theirs."""
    producer = AwaitedProducer(ServiceSettings())
    (client,) = Client.made
    client.hangs.add(b"k")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(producer.send("t", b"k", b"v"), 0.05))
    client.hangs.clear()
    client.reports(b"k")
    asyncio.run(asyncio.wait_for(producer.send("t", b"l", b"v"), 5))


@pytest.mark.parametrize(("delivery", "request_ms"), [(30.0, 10_000), (120.0, 10_000), (6.0, 2_000), (0.5, 1_000)])
def test_a_record_is_sent_again_before_it_is_given_up(delivery: float, request_ms: int) -> None:
    """A broker that hangs closes no connection, and soon another one leads; its clients must try again in time."""
    assert ServiceSettings(delivery_timeout_seconds=delivery).kafka()["socket.timeout.ms"] == request_ms
    decider = DeciderSettings(delivery_timeout_seconds=delivery)
    conf = new_app(decider).conf
    assert conf.broker_request_timeout == 15.0
    assert conf.consumer_metadata_max_age_ms < 10_000


def test_a_record_that_is_refused_costs_no_producer() -> None:
    """Only what a client cannot recover from needs another one."""
    publisher = Publisher(ServiceSettings())
    Client.made[0].fails["produce"] = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(NotDelivered):
        publisher.publish(job())
    assert len(Client.made) == 1
