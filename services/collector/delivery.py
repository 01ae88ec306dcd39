"""The delivery queue: callers hand events over without waiting, one thread delivers them to Kafka.

A snapshot that does not arrive is a gap, which the log reports; later snapshots are delivered as usual.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from tidegate.events.wire import Wire
from tidegate.runtime.producer import NotDelivered

log = logging.getLogger(__name__)


class BulkPublisher(Protocol):
    """Publishes events in bulk; `tidegate.runtime.publisher.Publisher` is one."""

    def send(self, event: Wire, *, key: bytes | None = None) -> None:
        """Queue one event."""

    def flush(self) -> None:
        """Wait for every acknowledgement; raise `NotDelivered` if one does not come."""


Outgoing = tuple[Wire, bytes | None]
"""An event and, for a dead letter, the key of its record."""


class DeliveryQueue:
    """Owns the publisher; at most `backlog` events wait for a slow broker."""

    def __init__(self, publisher: BulkPublisher, backlog: int, on_delivery: Callable[[int, int], None]) -> None:
        self._publisher = publisher
        self._backlog = backlog
        self._on_delivery = on_delivery
        self._waiting = 0
        self._lock = threading.Lock()
        self._batches: SimpleQueue[Sequence[Outgoing] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="collector-delivery", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Outgoing]) -> None:
        """Queue events; drop them, with a warning, if too many wait already."""
        with self._lock:
            full = self._waiting + len(events) > self._backlog
            self._waiting += 0 if full else len(events)
        if full:
            log.warning("dropped %d events: %d already wait for the broker", len(events), self._waiting)
            self._on_delivery(0, len(events))
        elif events:
            self._batches.put(events)

    def close(self, timeout_seconds: float) -> None:
        """Deliver what is queued, for at most `timeout_seconds`."""
        self._batches.put(None)
        self._thread.join(timeout_seconds)
        if self._waiting:
            log.warning("%d events were not delivered before the end", self._waiting)

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                taken = sum(self._sent(event, key) for event, key in batch)
                self._publisher.flush()
                delivered = taken
            except NotDelivered as error:
                delivered = 0
                log.warning("not delivered, so there is a gap: %s", str(error)[:500])
            except Exception:
                # the collector keeps measuring and tries to publish later snapshots
                delivered = 0
                log.exception("publishing %d events failed", len(batch))
            with self._lock:
                self._waiting -= len(batch)
            self._on_delivery(delivered, len(batch) - delivered)

    def _sent(self, event: Wire, key: bytes | None) -> bool:
        """Hand an event to the publisher; return whether it took it. One that is too large must not cost the others."""
        try:
            self._publisher.send(event, key=key)
        except NotDelivered as error:
            log.warning("not delivered, so there is a gap: %s", str(error)[:500])
            return False
        return True
