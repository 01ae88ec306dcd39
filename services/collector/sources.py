"""The sources of a round, each with its own time limit: Kafka, the clusters, the log directories.

A source that fails or takes too long answers None, and the snapshots name its parts as missing. The log reports once
that a source stopped answering, and once that it answers again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from services.collector.checkpoint import checkpoint_offsets
from services.collector.metrics import CollectorMetrics
from services.collector.offsets import TopicOffsets
from services.collector.settings import CollectorSettings
from services.collector.view import ClusterView
from services.collector.worker import WorkerThreads
from tidegate.events.job import JobSpec
from tidegate.remote.files import Files, Place
from tidegate.runtime.clock import Clock
from tidegate.runtime.producer import said
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.log_directory import READERS, JobReading

log = logging.getLogger(__name__)

T = TypeVar("T")

FAR_SECONDS = 15.0
"""How often logs that are not on this machine are read if no round has read them, so that it has less to read."""
CHECKPOINT_SECONDS = 60.0
"""How long the offsets in a checkpoint hold: to read hundreds that are elsewhere may take longer than a round waits."""


@dataclass(frozen=True, slots=True)
class KafkaAnswer:
    """The offsets of the topics of a round."""

    ends: TopicOffsets | None
    """None if Kafka did not answer."""
    at: datetime
    """When the end offsets were read, or would have been."""
    firsts: TopicOffsets
    """Those that are known."""
    stable_ends: TopicOffsets | None = None
    """Where the first open transaction begins, for jobs that read only what is committed; None without an answer."""
    is_known: bool = True
    """False if the settings do not name the cluster."""

    def of(self, spec: JobSpec) -> KafkaAnswer:
        """Return the answer with the end offsets up to which a job can read."""
        return replace(self, ends=self.stable_ends) if spec.read_committed else self


class OffsetSource(Protocol):
    """Knows the offsets of topics; `offsets.KafkaOffsets` is one. Blocks."""

    def end_offsets(self, topics: Collection[str], *, read_committed: bool = False) -> TopicOffsets:
        """Return the end offsets of topics; with `read_committed`, a partition ends before an open transaction."""

    def first_offsets(self, ends: TopicOffsets) -> TopicOffsets:
        """Return the first offsets of topics whose end offsets are given, as far as they are known."""


class ClusterAnswer(Protocol):
    """One answer about a cluster: a master's, a ResourceManager's, or that of the API of Kubernetes."""

    def of(self, spec: JobSpec) -> ClusterView:
        """Return what a job sees of it."""


class ClusterSource(Protocol):
    """Knows the clusters; `clusters.Clusters` is one."""

    async def view(self, place: str) -> ClusterAnswer:
        """Return the state of the cluster at a place, as `Application.cluster_place` names it."""

    def keep(self, places: Collection[str]) -> None:
        """Forget all other places."""


class LogSource(Protocol):
    """One directory of event logs; `log_directory.LogDirectory` is one. Blocks."""

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Follow all wanted jobs; return the readings of those with an interval."""


@dataclass(slots=True)
class _Directory:
    """One directory of event logs, opened when it is first read, and what is known of it. Times are monotonic."""

    open_logs: Callable[[], LogSource]
    logs: LogSource | None = None
    asked_at: float = -inf
    took: float = 0.0
    """How many seconds the last look at it took."""
    checkpoints: dict[str, tuple[float, PartitionOffsets]] = field(default_factory=dict)
    """Of its jobs, by location: when each was read, and what it said."""
    unread: deque[str] = field(default_factory=deque)
    """Locations of checkpoints that are to be read."""
    being_read: set[str] = field(default_factory=set)
    """Those that a thread reads now; it may hang in one on a dead disk."""

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Follow the wanted jobs."""
        if self.logs is None:
            self.logs = self.open_logs()
        return self.logs.read(wanted)


@dataclass(kw_only=True)
class Sources:
    """Asks every source within its time limit, and never raises an error of a source."""

    settings: CollectorSettings
    clock: Clock
    offsets: Mapping[str | None, OffsetSource]
    """By the name of the Kafka cluster; None for the one with Tidegate's own topics."""
    clusters: ClusterSource
    open_logs: Callable[[Place], LogSource]
    metrics: CollectorMetrics
    files: Files = field(default_factory=Files)

    def __post_init__(self) -> None:
        self._kafka_workers = WorkerThreads("kafka")
        self._log_workers = WorkerThreads("logs")
        self._checkpoint_workers = WorkerThreads("checkpoints")
        self._directories: dict[str, _Directory] = {}
        self._silent: set[str] = set()
        self._asked: set[tuple[str, str]] = set()

    async def kafka(self, cluster: str | None, topics: Collection[str], committed: Collection[str] = ()) -> KafkaAnswer:
        """Return the end offsets of topics of a Kafka cluster, the time of the measurement, and the first offsets.

        Of the topics `committed`, the end offsets are those of readers of committed transactions.
        """
        source, name = self.offsets.get(cluster), cluster or ""
        if source is None:
            return KafkaAnswer(ends=None, at=self.clock.now(), firsts={}, is_known=False)

        async def ask(question: Callable[[], TopicOffsets]) -> TopicOffsets | None:
            call = self._kafka_workers.call(name, self.settings.kafka_timeout_seconds, question)
            return await self.bounded("kafka", name, call)

        ends = await ask(lambda: source.end_offsets(topics))
        at, stable, firsts = self.clock.now(), None, None
        if committed:
            stable = await ask(lambda: source.end_offsets(committed, read_committed=True))
        if known := {**(ends or {}), **(stable or {})}:
            firsts = await ask(lambda: source.first_offsets(known))
        return KafkaAnswer(ends=ends, at=at, firsts=firsts or {}, stable_ends=stable)

    async def cluster(self, place: str) -> ClusterAnswer | None:
        """Return the state of the cluster at `place`."""
        seconds = self.settings.master_timeout_seconds

        async def view() -> ClusterAnswer:
            try:
                return await asyncio.wait_for(self.clusters.view(place), seconds)
            except TimeoutError:
                why = f"no answer within {seconds:g} s; a large cluster may need more: TIDEGATE_MASTER_TIMEOUT_SECONDS"
                raise TimeoutError(why) from None

        return await self.bounded("master", place, view())

    async def logs(self, where: str, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading] | None:
        """Follow the logs of all wanted jobs in one directory; return the readings of those with an interval."""
        directory = self._directory(where)
        began = directory.asked_at = self.clock.monotonic()
        call = self._log_workers.call(where, self.settings.log_timeout_seconds, directory.read, wanted)
        readings = await self.bounded("logs", where, call)
        directory.took = self.clock.monotonic() - began
        return readings

    def are_due(self, where: str, seconds_left: float) -> bool:
        """Return whether to read the logs of a directory between rounds, the next of which begins in `seconds_left`.

        Those on this machine always, unless that would take until then: the round would wait for it. Elsewhere a look
        costs as many requests, however little is new.
        """
        directory = self._directory(where)
        if directory.took >= seconds_left:
            return False
        is_near = urlsplit(where).scheme in ("", "file")
        return is_near or self.clock.monotonic() - directory.asked_at >= FAR_SECONDS

    async def checkpoints(self, where: str, topics: Mapping[str, Collection[str]]) -> Mapping[str, PartitionOffsets]:
        """Return the committed offsets by checkpoints, by location, for jobs with their logs in one directory.

        Those that cannot be read in time are read on, so that the next round has their answer.
        """
        directory, seconds = self._directory(where), self.settings.log_timeout_seconds
        known = directory.checkpoints
        call = self._checkpoint_workers.call(where, seconds, self._read_checkpoints, topics, directory)
        await self.bounded("checkpoints", where, call)
        since = self.clock.monotonic() - CHECKPOINT_SECONDS
        for location in [location for location, (at, _) in list(known.items()) if at < since]:
            known.pop(location, None)
        return {location: found[1] for location in topics if (found := known.get(location)) is not None}

    def _directory(self, where: str) -> _Directory:
        def opened() -> LogSource:
            return self.open_logs(self.files.log_place(where))

        return self._directories.setdefault(where, _Directory(opened))

    def _read_checkpoints(self, topics: Mapping[str, Collection[str]], directory: _Directory) -> None:
        """Note what can be read, the oldest answers first; one that is broken or hangs must not hide the others."""
        known, being_read = directory.checkpoints, directory.being_read

        def read(location: str) -> None:
            try:
                at = self.clock.monotonic()
                known[location] = at, checkpoint_offsets(self.files.place(location), topics[location])
            except Exception as error:  # noqa: BLE001 - nobody else hears of it
                known.pop(location, None)
                log.warning("cannot read the committed offsets in %s: %s", location, error)

        def read_all(unread: deque[str]) -> None:
            with suppress(IndexError):  # another thread may have taken the last one
                while unread:
                    being_read.add(location := unread.popleft())
                    read(location)
                    being_read.discard(location)

        late = [location for location in topics if location in being_read]
        directory.unread.clear()  # what an earlier round has not come to, this one reads
        wanted = [location for location in topics if location not in late]
        unread = deque(sorted(wanted, key=lambda location: known.get(location, (-inf, {}))[0]))
        directory.unread = unread
        threads = [threading.Thread(target=read_all, args=(unread,), daemon=True) for _ in unread][:READERS]
        deadline = time.monotonic() + self.settings.log_timeout_seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if late:
            raise TimeoutError(f"no answer yet from {', '.join(late[:3])}")

    async def bounded(self, kind: str, place: str, answer: Awaitable[T]) -> T | None:
        """Return an answer, or None when the source, of a kind and at a place, fails or is too slow."""
        source = f"{kind} {place}".rstrip()
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - one source must not stop the others
            self.metrics.source_failures.labels(kind).inc()
            if source not in self._silent:
                self._silent.add(source)
                log.warning("%s does not answer: %s: %s", source, type(error).__name__, said(error))
            return None
        if source in self._silent:
            self._silent.discard(source)
            log.info("%s answers again", source)
        self._asked.add((kind, place))
        self.metrics.source_at.labels(kind, place).set(self.clock.now().timestamp())
        return result

    def keep(self, places: Collection[str]) -> None:
        """Forget clusters and directories that no job has any more: their metrics, and the threads that read there."""
        for kind, place in [asked for asked in self._asked if asked[1] and asked[1] not in places]:
            self._asked.discard((kind, place))
            self.metrics.source_at.remove(kind, place)
        for where in self._directories.keys() - set(places):
            del self._directories[where]
        self.clusters.keep(places)
        self._kafka_workers.keep(places)
        self._log_workers.keep(places)
        self._checkpoint_workers.keep(places)

    def close(self) -> None:
        """End the threads."""
        for workers in (self._kafka_workers, self._log_workers, self._checkpoint_workers):
            workers.close()
