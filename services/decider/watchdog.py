"""The watchdog ends a process that has silently stopped consuming, so that its supervisor restarts it.

It asks only the broker, for the group's committed offsets and the log ends of this process's partitions. From there a
dead fetcher, a hung recovery, an endless rebalance and a hung lane (once its queue is full) all look alike: there is
lag, and no progress.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from services.decider.settings import DeciderSettings
from tidegate.runtime.clock import Clock
from tidegate.runtime.consumer import Partition, all_told, leaders_offsets
from tidegate.runtime.producer import said

log = logging.getLogger(__name__)


class StallDetector:
    """Distinguishes a stall from idleness: a stall is lag for `stall_seconds` in which no committed offset moved."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._since: float | None = None
        self._committed: dict[Partition, int] = {}

    def stalled(self, committed: dict[Partition, int], ends: dict[Partition, int], now: float) -> bool:
        """Record what the broker said at `now` (monotonic seconds); return whether the process has stalled."""
        lag = any(ends[p] > committed.get(p, 0) for p in ends)
        if not lag or committed != self._committed:
            self._since = None
        self._committed = committed
        if not lag:
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._stall_seconds


@dataclass(kw_only=True)
class Watchdog:
    """Asks the broker every few seconds, in its own thread, and calls `on_stall` or `on_failure` once."""

    settings: DeciderSettings
    clock: Clock
    partitions: Callable[[], Iterable[Partition]]
    on_stall: Callable[[str], None]
    on_lag: Callable[[int], None]
    on_failure: Callable[[Exception], None]
    """Gets what nobody expects: without a watchdog, a stall would last until somebody notices it."""

    def __post_init__(self) -> None:
        self._consumer = Consumer(
            {**self.settings.kafka(), "group.id": self.settings.group, "enable.auto.commit": False}
        )
        self._admin = AdminClient(self.settings.kafka())
        self._detector = StallDetector(self.settings.stall_seconds)
        self._every = min(5.0, self.settings.stall_seconds / 4)

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - nobody else hears of it
            self.on_failure(error)

    def _watch(self) -> None:
        while True:
            time.sleep(self._every)
            self._consumer.poll(0)  # subscribed to nothing: only passes librdkafka's log lines to Python's logging
            self._admin.poll(0)
            try:
                committed, ends = self._ask()
            except KafkaException as error:
                # An unreachable broker is not our stall: nobody can make progress. Then the time limit starts again.
                self._detector = StallDetector(self.settings.stall_seconds)
                log.warning("the broker does not tell the group's offsets: %s", said(error))
                continue
            self.on_lag(sum(max(0, ends[p] - committed.get(p, 0)) for p in ends))
            if self._detector.stalled(committed, ends, self.clock.monotonic()):
                self.on_stall(f"no progress, with lag on {sorted(p for p in ends if ends[p] > committed.get(p, 0))}")
                return

    def _ask(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return committed offsets and log ends. A partition without a committed offset counts from its beginning."""
        committed: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        asked = [TopicPartition(*partition) for partition in self.partitions()]
        if not asked:
            return committed, ends
        # Only this makes the client forget a leader that is gone: it would ask it for minutes, also when it is back.
        self._admin.list_topics(timeout=10)
        first, end = self._offsets(asked, OffsetSpec.earliest()), self._offsets(asked, OffsetSpec.latest())
        for found in self._consumer.committed(asked, timeout=10):
            place = (found.topic, found.partition)
            ends[place] = end[place]
            committed[place] = max(found.offset, first[place])
        return committed, ends

    def _offsets(self, asked: list[TopicPartition], spec: OffsetSpec) -> dict[Partition, int]:
        return all_told(leaders_offsets(self._admin, asked, spec, timeout_seconds=10.0))
