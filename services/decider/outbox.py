"""The outbox on Kafka: events wait for their acknowledgement; a state goes to its changelog first, then to memory.

It writes with librdkafka, because Faust's producer is pure Python and takes two fifths more CPU per record (decision
record 0009). One thread waits for acknowledgements and passes them to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple, Protocol

from confluent_kafka import Message

from services.decider.settings import DeciderSettings
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Headers, encode
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.runtime.consumer import TopicReader, written_at
from tidegate.runtime.dead_letters import without_bytes
from tidegate.runtime.meanwhile import meanwhile
from tidegate.runtime.producer import NotDelivered, RecordProducer, TooLarge
from tidegate.runtime.settings import ServiceSettings

MAX_REQUEST_BYTES = 4_000_000
"""A dead letter holds its record in base64, so it may be larger than any other event."""


class Kept(NamedTuple):
    """A job's state."""

    partition: int
    value: bytes


class States:
    """The states of all jobs as bytes: read in full when first needed, and again after each `forget`."""

    def __init__(self, read: Callable[[], dict[bytes, Kept]]) -> None:
        self.found: dict[bytes, Kept] = {}
        self.owned: Collection[int] = ()
        """The partitions whose states only this process may change."""
        self._read = read
        self._reading = asyncio.Lock()
        self._revocations = 0
        self._read_after: int | None = None

    async def ready(self) -> None:
        """Return when memory holds the states of all pipelines; all lanes share one read."""
        async with self._reading:
            while self._read_after != self._revocations:
                revocations = self._revocations  # a revocation during the read makes it run again
                self.found = await asyncio.wrap_future(meanwhile(self._read))
                self._read_after = revocations

    def forget(self) -> None:
        """Forget the states: another process may now change them."""
        self._revocations += 1
        self.owned = ()


class SendsRecords(Protocol):
    """A producer whose `send` returns when the broker has acknowledged the record."""

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Send a record; raise `NotDelivered` if the broker does not acknowledge it, `TooLarge` if it is too large."""


class KafkaOutbox:
    """The `Outbox` on Kafka: a producer with awaited acknowledgements, and the states with their changelog.

    The states are not a Faust table, because a table's recovery hung after a restart with a backlog (decision record
    0008). The first record after each assignment reads them in full; a revocation forgets them.
    """

    def __init__(self, settings: DeciderSettings, producer: SendsRecords | None = None) -> None:
        self.states = States(partial(read_states, settings))
        self._producer = producer or AwaitedProducer(settings)
        self._names = {topic: topic.named(settings.topic_prefix) for topic in TOPICS}
        self._changelog = settings.changelog

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event and wait for its acknowledgement. A dead letter that is too large goes without its bytes."""
        record = encode(event, trace_id=trace_id, key=key)
        try:
            await self._producer.send(self._names[record.topic], record.key, record.value, record.headers)
        except TooLarge:
            if not isinstance(event, DeadLetter):
                raise
            record = encode(without_bytes(event), trace_id=trace_id)
            await self._producer.send(self._names[record.topic], record.key, record.value, record.headers)

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Write a state to a partition of the changelog, wait for the acknowledgement, then keep it in memory."""
        await self._producer.send(self._changelog, key, value, partition=partition)
        self.states.found[key] = Kept(partition, value)

    def kept(self, key: bytes) -> bytes | None:
        """Return the newest state under the key."""
        found = self.states.found.get(key)
        return None if found is None else found.value

    def keys(self) -> Collection[bytes]:
        """Return the keys of all states, those that belong to other deciders included."""
        return self.states.found.keys()

    async def drop(self, key: bytes) -> None:
        """Remove a state from memory and, if its partition is ours, from the changelog. A newer one stays in memory."""
        found = self.states.found.get(key)
        if found is not None and found.partition in self.states.owned:
            await self._producer.send(self._changelog, key, None, partition=found.partition)
        if found is self.states.found.get(key):
            self.states.found.pop(key, None)


class AwaitedProducer:
    """A Kafka producer for an event loop."""

    def __init__(self, settings: ServiceSettings) -> None:
        # A lane waits for the acknowledgement of its record, so the record must not wait for others.
        self._producer = RecordProducer(settings, **{"linger.ms": 0, "message.max.bytes": MAX_REQUEST_BYTES})
        self._waiting: set[Callable[[NotDelivered | None], None]] = set()
        threading.Thread(target=self._serve, name="acknowledgements", daemon=True).start()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Send a record; raise `NotDelivered` if the broker does not acknowledge it, `TooLarge` if it is too large."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def delivered(error: NotDelivered | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for this record any more
                loop.call_soon_threadsafe(_finish, done, error)

        place = {} if partition is None else {"partition": partition}
        self._waiting.add(delivered)
        try:
            self._producer.produce(topic, key, value, headers or [], delivered, **place)
            await done
        finally:
            self._waiting.discard(delivered)

    def _serve(self) -> None:
        while True:
            try:
                self._producer.poll(1.0)
            except NotDelivered as error:  # of none of them there will be a report
                for delivered in list(self._waiting):
                    delivered(error)


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    """Wake the sender, unless it no longer waits."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def read_states(settings: DeciderSettings) -> dict[bytes, Kept]:
    """Return the newest state under each key of the changelog.

    If partitions were added to the topics, a job's states from before are on another partition than those from since,
    and Kafka gives no order of the two but their time.
    """
    found: dict[bytes, Message] = {}
    with closing(TopicReader(settings, [settings.changelog])) as reader:
        for message in reader.read_to_end():
            before = found.setdefault(message.key() or b"", message)
            if before.partition() == message.partition() or written_at(before) <= written_at(message):
                found[message.key() or b""] = message
    return {key: Kept(m.partition(), m.value()) for key, m in found.items() if m.value() is not None}
