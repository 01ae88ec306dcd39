"""What is on its way to Kafka: handed over at once, delivered by one thread, never waited for.

A snapshot that does not arrive is a gap and is said so; the next one goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from tidegate.events.wire import Wire
from tidegate.runtime.kafka import NotDelivered

log = logging.getLogger(__name__)


class Publishes(Protocol):
    """Where events go; `tidegate.runtime.kafka.Publisher` is one."""

    def send(self, event: Wire, *, key: bytes | None = None) -> None:
        """Hand one event over."""
        ...

    def flush(self) -> None:
        """Wait for the acknowledgement of all; raise `NotDelivered`."""
        ...


Event = tuple[Wire, bytes | None]
"""An event and, for dead letters, the key of the record they bury."""


class Outbox:
    """Owns the publisher; `backlog` bounds what may wait for a slow broker."""

    def __init__(self, publisher: Publishes, backlog: int, on_delivery: Callable[[int, int], None]) -> None:
        self._publisher = publisher
        self._backlog = backlog
        self._on_delivery = on_delivery
        self._waiting = 0
        self._lock = threading.Lock()
        self._batches: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="collector-outbox", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Event]) -> None:
        """Hand events over; they are dropped, and said so, when too many wait already."""
        with self._lock:
            full = self._waiting + len(events) > self._backlog
            self._waiting += 0 if full else len(events)
        if full:
            log.warning("%d events dropped: %d wait for the broker already", len(events), self._waiting)
            self._on_delivery(0, len(events))
        elif events:
            self._batches.put(events)

    def close(self, timeout_seconds: float) -> None:
        """Deliver what waits, for at most `timeout_seconds`."""
        self._batches.put(None)
        self._thread.join(timeout_seconds)
        if self._waiting:
            log.warning("%d events were not delivered before the end", self._waiting)

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                for event, key in batch:
                    self._publisher.send(event, key=key)
                self._publisher.flush()
                delivered = len(batch)
            except NotDelivered as error:
                delivered = 0
                log.warning("not delivered, so a gap: %s", str(error)[:500])
            except Exception:
                # whatever it is, the measuring goes on and later snapshots are tried again
                delivered = 0
                log.exception("publishing %d events failed", len(batch))
            with self._lock:
                self._waiting -= len(batch)
            self._on_delivery(delivered, len(batch) - delivered)
