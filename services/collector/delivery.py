"""The delivery queue: callers hand events over without waiting, one thread delivers them to Kafka.

A snapshot that does not arrive is a gap, which the log reports; later snapshots are delivered as usual. They do not
wait for its acknowledgement: a partition may be without a leader for hours, and the jobs of the others are to be
measured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from tidegate.events.wire import Wire
from tidegate.runtime.producer import Delivered, NotDelivered, ProducerReplaced

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.1
"""Between two looks for acknowledgements, while some are awaited."""


class BulkPublisher(Protocol):
    """Publishes events in bulk; `tidegate.runtime.publisher.Publisher` is one."""

    def send(self, event: Wire, *, key: bytes | None = None, delivered: Delivered | None = None) -> None:
        """Queue one event; `serve` and `flush` call `delivered`, with None or with why it did not arrive."""

    def serve(self) -> None:
        """Report what was delivered meanwhile; do not wait."""

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
        self._sent = 0
        """Number of events that were sent, which tells each from the others."""
        self._awaited = set[int]()
        """Those that the broker has not acknowledged."""
        self._arrived = 0
        self._lost: list[str] = []
        """Why events did not arrive, since the last report."""
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
        while (batch := self._next()) is not None:
            for event, key in batch:
                self._send(event, key)
            self._ask(self._publisher.serve)
            self._report()
        self._ask(self._publisher.flush)
        self._report()

    def _next(self) -> Sequence[Outgoing] | None:
        """Return the next events, or none after a moment while acknowledgements are awaited; None at the end."""
        try:
            return self._batches.get(timeout=REPORT_SECONDS if self._awaited else None)
        except Empty:
            return ()

    def _send(self, event: Wire, key: bytes | None) -> None:
        """Hand an event to the publisher. One that is too large, or that cannot be sent, must not cost the others."""
        self._sent += 1
        number = self._sent
        self._awaited.add(number)
        try:
            self._publisher.send(event, key=key, delivered=partial(self._delivered, number))
        except ProducerReplaced as error:
            self._lose_all(error)
        except NotDelivered as error:
            self._delivered(number, error)
        except Exception as error:
            # the collector keeps measuring and tries to publish the others
            log.exception("publishing an event failed")
            self._delivered(number, NotDelivered(f"{type(error).__name__}: {error}"))

    def _ask(self, reports: Callable[[], None]) -> None:
        """Have the publisher report deliveries."""
        try:
            reports()
        except NotDelivered as error:  # of those that are awaited there will be no report
            self._lose_all(error)

    def _delivered(self, number: int, error: NotDelivered | None) -> None:
        if number in self._awaited:
            self._awaited.discard(number)
            if error is None:
                self._arrived += 1
            else:
                self._lost.append(str(error))

    def _lose_all(self, error: NotDelivered) -> None:
        self._lost += [str(error)] * len(self._awaited)
        self._awaited.clear()

    def _report(self) -> None:
        """Tell how many events have arrived and how many have not since the last report."""
        arrived, lost = self._arrived, self._lost
        if not arrived and not lost:
            return
        self._arrived, self._lost = 0, []
        with self._lock:
            self._waiting -= arrived + len(lost)
        if lost:
            log.warning("not delivered, so there is a gap: %s", "; ".join(dict.fromkeys(lost))[:500])
        self._on_delivery(arrived, len(lost))
