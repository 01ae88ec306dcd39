"""The one Kafka producer under everything that publishes: its settings, its delivery reports, its errors.

It is idempotent and uses Java's murmur2 partitioner, as Faust and Spark do: librdkafka's own picks another partition
for the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidegate.runtime.settings import ServiceSettings

_FATAL = (KafkaException, SystemError)
"""What a client raises from its callbacks after a fatal error: the second one if it was about to report a delivery."""


class NotDelivered(RuntimeError):
    """The broker did not acknowledge a record; do not commit anything that depends on it."""


class TooLarge(NotDelivered):
    """The record is larger than its topic, or the producer, accepts."""


class ProducerReplaced(NotDelivered):
    """The client has failed for good: of what it had, nothing more is reported."""


Delivered = Callable[[NotDelivered | None], None]
"""Is told that a record has arrived, or why it has not."""


class RecordProducer:
    """Produces each record once, in order, on the partition of its key.

    librdkafka calls `delivered` from `poll` or `flush`, with None or with the reason why the record did not arrive.

    An idempotent client that has met a fatal error never sends anything again: for example, because a broker has lost
    its newest records, and so expects lower sequence numbers. It is replaced, and all that it had is not delivered.
    """

    def __init__(self, settings: ServiceSettings, **overrides: str | float) -> None:
        self._conf = {
            **settings.kafka(),
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "delivery.timeout.ms": int(settings.delivery_timeout_seconds * 1000),
            **overrides,
        }
        self._producer = Producer(self._conf)

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        delivered: Delivered,
        **place: int,
    ) -> None:
        """Queue a record; `place` may hold its `partition` and its `timestamp` in milliseconds.

        Raises `TooLarge` or `NotDelivered` for a record that librdkafka does not accept, `NotDelivered` after a fatal
        error, as `poll` and `flush` do.
        """

        def reported(error: KafkaError | None, _message: Message) -> None:
            delivered(None if error is None else _not_delivered(error, topic, key))

        record: dict[str, Any] = {"headers": list(headers), "on_delivery": reported, **place}
        while True:
            try:
                self._producer.produce(topic, value, key or None, **record)
            except BufferError:  # the queue is full: wait until the broker has taken some records
                self.poll(0.1)
            except KafkaException as error:
                if error.args[0].fatal():
                    raise self._replaced() from None
                raise _not_delivered(error.args[0], topic, key) from None
            else:
                return

    def poll(self, seconds: float) -> None:
        """Handle delivery reports and librdkafka's log lines; wait up to `seconds` for the first."""
        try:
            self._producer.poll(seconds)
        except _FATAL:
            raise self._replaced() from None

    def flush(self, seconds: float) -> int:
        """Wait until every record has its report; return how many have none after `seconds`."""
        try:
            return int(self._producer.flush(seconds))
        except _FATAL:
            raise self._replaced() from None

    def _replaced(self) -> ProducerReplaced:
        """Replace the client; return what to raise for it."""
        self._producer = Producer(self._conf)
        text = "the producer has failed for good, as librdkafka's log says; another one takes its place"
        return ProducerReplaced(text)


def said(error: Exception) -> str:
    """Return what an error says: in words alone if it is Kafka's, whose text is a dump of its fields."""
    first = error.args[0] if error.args else None
    return first.str() if isinstance(first, KafkaError) else str(error)


def _not_delivered(error: KafkaError, topic: str, key: bytes | None) -> NotDelivered:
    kind = TooLarge if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else NotDelivered
    return kind(f"{topic} key {key!r}: {error.str()}")
