"""Watching a run from outside the services: offsets once a second, decisions and results as they arrive.

Lag is the broker's end offsets minus what the checkpoint says is committed; the delay is how long ago the end offsets
passed what is committed. Both are read directly, so the demo judges the services by figures they did not compute.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidegate.client import BadRecord, ClientSettings, received
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.events.wire import Wire
from tidegate.remote.files import Place, names

W = TypeVar("W", bound=Wire)
SAMPLE_SECONDS = 1.0
RATE_SECONDS = 5.0
"""Rates are averaged over this time."""


@dataclass(frozen=True, slots=True)
class DemoSample:
    """Counts at one instant, in records since the topics were created."""

    at: float
    """Seconds since the epoch."""
    arrived: int
    written: int
    committed: int
    delay_seconds: float
    """Age of the oldest record that is not committed; 0 without any."""
    slots: int

    @property
    def lag(self) -> int:
        """Records that have arrived and are not committed."""
        return max(0, self.arrived - self.committed)


@dataclass(frozen=True, slots=True)
class ChangeSpan:
    """The time in which the size was being changed, in seconds since the epoch."""

    way: Way
    begin: float
    end: float | None
    """None if it had not ended when the run did."""


@dataclass
class Timeline:
    """Everything observed of a run. The watcher's threads append to it; anyone may read it."""

    samples: list[DemoSample] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    results: list[ActionResult] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """The errors that stopped a thread of the watcher."""

    def rates(self, index: int = -1) -> tuple[float, float]:
        """Return (records/s in, records/s out) over the seconds before a sample."""
        if not self.samples:
            return 0.0, 0.0
        position = index % len(self.samples)
        first = last = self.samples[position]
        while position > 0 and last.at - first.at < RATE_SECONDS:
            position -= 1
            first = self.samples[position]
        seconds = last.at - first.at
        if seconds <= 0:
            return 0.0, 0.0
        return (last.arrived - first.arrived) / seconds, (last.written - first.written) / seconds

    def slots(self) -> int:
        """Return the slots of the running query by the newest result; 0 while a restart has stopped it."""
        for result in reversed(self.results):
            if result.phase in (Phase.VERIFIED, Phase.ROLLED_BACK):
                return result.parallelism
            if result.phase in (Phase.STOPPED, Phase.STARTING, Phase.RUNNING) and result.way is not Way.HANDOVER:
                return 0
        return 0

    def size(self) -> int:
        """Return the last verified size; 0 before the first."""
        ended = (Phase.VERIFIED, Phase.ROLLED_BACK)
        return next((r.parallelism for r in reversed(self.results) if r.phase in ended), 0)

    def delay(self, at: float, arrived: int, committed: int) -> float:
        """Return how long ago, by the samples before, the oldest record that is not committed may have arrived."""
        if committed >= arrived:
            return 0.0
        before = bisect_right(self.samples, committed, key=lambda sample: sample.arrived)
        return at - self.samples[before - 1].at if before else 0.0

    def under_objective_since(self, objective_seconds: float) -> float | None:
        """Return since when the delay has been under the objective without interruption; None if it is not."""
        since = None
        for sample in reversed(self.samples):
            if sample.delay_seconds > objective_seconds:
                break
            since = sample.at
        return since

    def changes_under_way(self) -> list[ChangeSpan]:
        """Return when the size was being changed, and how, by the results of commands."""
        spans: dict[str, ChangeSpan] = {}
        for result in self.results:
            at, known = result.at.timestamp(), spans.get(result.command_id)
            if result.kind is not CommandKind.RESCALE or result.way is None:
                continue
            begin = at if known is None else known.begin
            spans[result.command_id] = ChangeSpan(result.way, begin, at if result.phase.terminal else None)
        return list(spans.values())


class Watcher:
    """Fills a timeline until it is closed."""

    def __init__(self, settings: ClientSettings, job: str, source: str, sink: str, checkpoint: Place) -> None:
        self.timeline = Timeline()
        self._settings, self._job, self._checkpoint = settings, job, checkpoint
        self._source, self._sink = source, sink
        self._since = datetime.now(UTC)
        self._stop = threading.Event()
        jobs: list[Callable[[], None]] = [
            self._sample,
            lambda: self._follow(Decision, self.timeline.decisions),
            lambda: self._follow(ActionResult, self.timeline.results),
        ]
        self._threads = [threading.Thread(target=self._guarded, args=(run,), daemon=True) for run in jobs]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001  (the checks must see that a thread failed)
            self.timeline.broken.append(f"{type(error).__name__}: {error}")

    def _follow(self, model: type[W], into: list[W]) -> None:
        def unreadable(bad: BadRecord) -> None:
            self.timeline.unreadable.append(str(bad))

        stop, since = self._stop.is_set, self._since
        events = received(
            model, self._settings, job=self._job, since=since, follow=True, stop=stop, on_error=unreadable
        )
        for one in events:
            into.append(one.event)  # noqa: PERF401  (others read the list meanwhile)

    def _sample(self) -> None:
        consumer = Consumer({**self._settings.kafka(), "group.id": "tidegate-demo", "enable.auto.commit": False})
        with closing(consumer):
            partitions = {topic: _partitions_of(consumer, topic) for topic in (self._source, self._sink)}
            due = time.monotonic()
            while not self._stop.is_set():
                # Read before the end offsets, so that a race never understates lag.
                committed = committed_records(self._checkpoint)
                try:
                    arrived, written = (
                        sum(_end_offset(consumer, p) for p in partitions[topic]) for topic in (self._source, self._sink)
                    )
                except KafkaException:
                    arrived = -1  # a broker that does not answer leaves a gap in the picture and does not end the run
                if arrived >= 0:
                    now, slots = time.time(), self.timeline.slots()
                    delay = self.timeline.delay(now, arrived, committed)
                    self.timeline.samples.append(DemoSample(now, arrived, written, committed, delay, slots))
                due = max(due + SAMPLE_SECONDS, time.monotonic())
                self._stop.wait(max(0.0, due - time.monotonic()))


def committed_records(checkpoint: Place) -> int:
    """Return how many records are committed, for topics that start at offset 0."""
    try:
        newest = max((int(name) for name in names(checkpoint / "commits") if name.isdigit()), default=None)
        if newest is None:
            return 0
        # line 1: version, line 2: metadata, then one line per source: {"topic": {"partition": next offset}}
        lines = (checkpoint / "offsets" / str(newest)).read_text(encoding="utf-8").splitlines()[2:]
    except FileNotFoundError:
        return 0
    topics = (offsets for line in lines if line != "-" for offsets in json.loads(line).values())
    return sum(int(offset) for offsets in topics for offset in offsets.values())


def _partitions_of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Return the partitions of a topic."""
    return [TopicPartition(topic, p) for p in consumer.list_topics(topic, timeout=10).topics[topic].partitions]


def _end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end offset of a partition."""
    return int(consumer.get_watermark_offsets(partition, timeout=5)[1])
