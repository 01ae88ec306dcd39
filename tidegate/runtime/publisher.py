"""Publishing events, one by one or in bulk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Record, encode
from tidegate.events.wire import Wire
from tidegate.runtime.dead_letters import without_bytes
from tidegate.runtime.producer import Delivered, NotDelivered, RecordProducer, TooLarge
from tidegate.runtime.settings import ServiceSettings

REPORT_SECONDS = 0.02
"""Between two looks for the acknowledgement, which may have come while another thread was looking."""
_AnyHeaders = Sequence[tuple[str, bytes | None]]


class Publisher:
    """Publishes events: `publish` waits for the acknowledgement of one event, `send` and `flush` work in bulk."""

    def __init__(self, settings: ServiceSettings, **overrides: str | float) -> None:
        self._prefix = settings.topic_prefix
        self._timeout = settings.delivery_timeout_seconds
        self._failed: list[str] = []
        self._producer = RecordProducer(settings, **overrides)

    def send(
        self,
        event: Wire,
        *,
        key: bytes | None = None,
        trace_id: str | None = None,
        delivered: Delivered | None = None,
    ) -> None:
        """Queue an event; `delivered`, or else `flush`, tells whether it arrived.

        A dead letter that is too large goes without its bytes.
        """
        self._put(partial(self._send, delivered=delivered), event, key, trace_id)

    def serve(self) -> None:
        """Tell what was delivered since to whoever waits for it; raise `NotDelivered` if there will be no report."""
        self._producer.poll(0)

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
        self._produce(topic, key, value, list(headers), timestamp_ms=timestamp_ms)

    def tombstone(self, topic: str, key: bytes) -> None:
        """Publish a null value for a key of a compacted topic; wait for the acknowledgement."""
        self._produce(topic, key, None, [])
        self.flush()

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish one event and wait for its acknowledgement; raise `NotDelivered` if it does not come.

        Several threads may do so, and none waits for the record of another: its broker may hang.
        """
        self._put(self._await, event, key, trace_id)

    def flush(self) -> None:
        """Wait until the broker has acknowledged every record; otherwise raise `NotDelivered` with the failed ones."""
        try:
            left = self._producer.flush(self._timeout + 1)
        finally:
            failed, self._failed = self._failed, []
        if left or failed:
            raise NotDelivered("; ".join(failed) or f"{left} events not acknowledged after {self._timeout:g} s")

    def _put(self, put: Callable[[Record], None], event: Wire, key: bytes | None, trace_id: str | None) -> None:
        """Put an event as a record; a dead letter that is too large goes without its bytes."""
        try:
            put(encode(event, key=key, trace_id=trace_id))
        except TooLarge:
            if not isinstance(event, DeadLetter):
                raise
            put(encode(without_bytes(event), trace_id=trace_id))

    def _await(self, record: Record) -> None:
        reports: list[NotDelivered | None] = []
        name = record.topic.named(self._prefix)
        self._producer.produce(name, record.key, record.value, record.headers, reports.append)
        deadline = time.monotonic() + self._timeout + 1
        while not reports:
            if time.monotonic() > deadline:
                raise NotDelivered(f"{name} key {record.key!r}: not acknowledged after {self._timeout:g} s")
            self._producer.poll(REPORT_SECONDS)
        if reports[0] is not None:
            raise reports[0]

    def _send(self, record: Record, delivered: Delivered | None) -> None:
        name = record.topic.named(self._prefix)
        self._produce(name, record.key, record.value, record.headers, delivered=delivered)

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: _AnyHeaders,
        *,
        timestamp_ms: int | None = None,
        delivered: Delivered | None = None,
    ) -> None:
        def for_flush(error: NotDelivered | None) -> None:
            if error is not None:
                self._failed.append(str(error))

        place = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        self._producer.produce(topic, key, value, headers, delivered or for_flush, **place)
        self._producer.poll(0)
