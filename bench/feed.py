"""Records for a job, at a rate that may change while they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tidegate.client import ClientSettings

TICK_SECONDS = 0.05
VALUES = 100_000
"""Different values; they repeat after so many records, so that a job that counts them has no more state."""


class RecordFeed:
    """Sends records to all partitions of a topic in turn; set `rate`, in records/s, at any time."""

    def __init__(self, settings: ClientSettings, topic: str, partitions: int, rate: float) -> None:
        self.rate = rate
        self._topic, self._partitions = topic, partitions
        self._producer = Producer({**settings.kafka(), "linger.ms": 5})
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Deliver what was sent, and end."""
        self._done.set()
        self._thread.join(30)

    def _send(self) -> None:
        number, last, due = 0, time.monotonic(), 0.0
        while not self._done.wait(TICK_SECONDS):
            now = time.monotonic()
            due += min(now - last, 1.0) * self.rate
            last = now
            while due >= 1.0:
                self._producer.produce(self._topic, b"%d" % (number % VALUES), partition=number % self._partitions)
                number, due = number + 1, due - 1.0
            self._producer.poll(0)
        self._producer.flush(20)


@contextmanager
def feeding(settings: ClientSettings, topic: str, partitions: int, rate: float) -> Iterator[RecordFeed]:
    """Yield a feed that ends with the block."""
    feed = RecordFeed(settings, topic, partitions, rate)
    try:
        yield feed
    finally:
        feed.close()
