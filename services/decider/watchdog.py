"""The watchdog: a consumer that has quietly stopped consuming is ended, so that its supervisor starts it anew.

It asks the broker and nobody else: the group's committed offsets and the log ends of the partitions this process has.
A dead fetcher, a hung recovery and a rebalance that never ends all look the same from there: lag, and no progress. So
does a lane that hangs, once it is full, for then the agent stands still.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidegate.runtime.clock import Clock
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)

Partition = tuple[str, int]


class Progress:
    """Tells a stall from idleness: lag over `patience_seconds` in which no committed offset has moved."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._since: float | None = None
        self._committed: dict[Partition, int] = {}

    def stalled(self, committed: dict[Partition, int], ends: dict[Partition, int], now: float) -> bool:
        """Take in what the broker says at `now` (seconds that never step); return whether the patience is over."""
        lag = any(ends[p] > committed.get(p, 0) for p in ends)
        if not lag or committed != self._committed:
            self._since = None
        self._committed = committed
        if not lag:
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._patience


class Watchdog:
    """Asks the broker every few seconds, in a thread of its own, and calls `on_stall` once."""

    def __init__(
        self,
        settings: ServiceSettings,
        clock: Clock,
        *,
        group: str,
        partitions: Callable[[], Iterable[Partition]],
        patience_seconds: float,
        on_stall: Callable[[str], None],
        on_lag: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._consumer = Consumer({**settings.kafka(), "group.id": group, "enable.auto.commit": False})
        self._clock = clock
        self._partitions = partitions
        self._progress = Progress(patience_seconds)
        self._every = min(5.0, patience_seconds / 4)
        self._on_stall = on_stall
        self._on_lag = on_lag
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                committed, ends = self._ask()
            except KafkaException as error:
                # An unreachable broker is no stall of ours: nobody can make progress.
                log.warning("the broker does not say how far the group is: %s", error)
                continue
            self._on_lag(sum(max(0, ends[p] - committed.get(p, 0)) for p in ends))
            if self._progress.stalled(committed, ends, self._clock.monotonic()):
                self._on_stall(f"no progress with lag on {sorted(p for p in ends if ends[p] > committed.get(p, 0))}")
                return
        self._consumer.close()

    def _ask(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return committed offsets and log ends. A partition never committed counts from its beginning."""
        committed: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        asked = [TopicPartition(*partition) for partition in self._partitions()]
        if not asked:
            return committed, ends
        for found in self._consumer.committed(asked, timeout=10):
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(found.topic, found.partition), timeout=10, cached=False
            )
            ends[found.topic, found.partition] = high
            committed[found.topic, found.partition] = max(found.offset, low)
        return committed, ends
