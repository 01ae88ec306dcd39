"""The outbox on Kafka: events go out and are awaited, states go to their changelog and only then to memory.

It writes with librdkafka and not with Faust's producer, which is pure Python and takes two fifths more CPU a record
(decision record 0009). One thread waits for acknowledgements and hands them to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from services.decider.ports import TooLargeToPublish
from services.decider.settings import DeciderSettings
from tidegate.events.envelope import Headers, encode
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.runtime.kafka import NotDelivered, TopicReader, producer_config
from tidegate.runtime.settings import ServiceSettings

MAX_REQUEST_BYTES = 4_000_000
"""A dead letter holds its record in base64, so it may be larger than any event."""


class States:
    """The states of pipelines as bytes: read whole when first asked for, and anew after each `forget`."""

    def __init__(self, read: Callable[[], dict[bytes, bytes]]) -> None:
        self.found: dict[bytes, bytes] = {}
        self._read = read
        self._reading = asyncio.Lock()
        self._revocations = 0
        self._read_after: int | None = None

    async def ready(self) -> None:
        """Return when the states of all pipelines this process may be handed are in memory; all lanes wait for one."""
        async with self._reading:
            while self._read_after != self._revocations:
                revocations = self._revocations  # one more while it is read, and it is read again
                self.found = await asyncio.to_thread(self._read)
                self._read_after = revocations

    def forget(self) -> None:
        """Forget the states: another process may go on with them."""
        self._revocations += 1


class KafkaOutbox:
    """The `Outbox` on Kafka: a producer whose acknowledgements are awaited, and the states with their changelog.

    The states are no Faust table: its recovery was seen to hang after a restart with a backlog (decision record 0008).
    They are read whole from the changelog at the first record after each assignment, and forgotten at a revocation.
    """

    def __init__(self, settings: DeciderSettings) -> None:
        self.states = States(partial(read_states, settings))
        self._producer = AwaitedProducer(settings)
        self._names = {topic: topic.named(settings.topic_prefix) for topic in TOPICS}
        self._changelog = settings.changelog

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event to its topic; return when the broker has acknowledged it."""
        record = encode(event, trace_id=trace_id, key=key)
        await self._producer.send(self._names[record.topic], record.key or None, record.value, headers=record.headers)

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Write a state to the changelog of a partition, and when that is acknowledged to memory."""
        await self._producer.send(self._changelog, key, value, partition=partition)
        self.states.found[key] = value

    def kept(self, key: bytes) -> bytes | None:
        """Return the state last kept under the key."""
        return self.states.found.get(key)


class AwaitedProducer:
    """A librdkafka producer for an event loop: `send` returns when the broker has acknowledged the record."""

    def __init__(self, settings: ServiceSettings) -> None:
        # A lane goes on when its record is acknowledged: time spent waiting for company is lost to it.
        changed = {"linger.ms": 0, "message.max.bytes": MAX_REQUEST_BYTES}
        self._producer = Producer(producer_config(settings) | changed)
        self._thread = threading.Thread(target=self._serve, name="acknowledgements", daemon=True)
        self._thread.start()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send a record; raise `NotDelivered` when it was not acknowledged, `TooLargeToPublish` when it cannot be."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            loop.call_soon_threadsafe(_settle, done, None if error is None else _not_sent(error, topic, value))

        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        try:
            self._producer.produce(topic, value, key, headers=headers or [], on_delivery=delivered, **place)
        except KafkaException as error:
            raise _not_sent(error.args[0], topic, value) from None
        await done

    def _serve(self) -> None:
        while True:
            self._producer.poll(1.0)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    """Give the acknowledgement, or the failure, to whoever still waits for it."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _not_sent(error: KafkaError, topic: str, value: bytes) -> Exception:
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return TooLargeToPublish(f"{len(value)} bytes for {topic}")
    return NotDelivered(f"{topic}: {error.str()}")


def read_states(settings: DeciderSettings) -> dict[bytes, bytes]:
    """Return the newest state under each key of the changelog."""
    reader = TopicReader(settings, [settings.changelog])
    try:
        found = {m.key() or b"": m.value() for m in reader.read_to_end()}
    finally:
        reader.close()
    return {key: value for key, value in found.items() if value is not None}
