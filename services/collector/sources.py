"""The sources of a round, each with its own time limit: Kafka, the masters, the log directories.

A source that fails or takes too long answers None, and the snapshots name its parts as missing. The log reports once
that a source stopped answering, and once that it answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from services.collector.application_run import Interval
from services.collector.log_directory import JobReading
from services.collector.master import MasterView
from services.collector.metrics import CollectorMetrics
from services.collector.offsets import EndOffsets
from services.collector.settings import CollectorSettings
from services.collector.worker import WorkerThread
from tidegate.runtime.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")


class OffsetSource(Protocol):
    """Knows the end offsets; `offsets.KafkaOffsets` is one. Blocks."""

    def end_offsets(self, topics: Collection[str]) -> EndOffsets:
        """Return the end offsets of topics."""
        ...


class MasterSource(Protocol):
    """Knows the clusters; `master.HttpMaster` is one."""

    async def view(self, ui_url: str) -> MasterView:
        """Return the state of the master at a URL."""
        ...


class LogSource(Protocol):
    """One directory of event logs; `log_directory.LogDirectory` is one. Blocks."""

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Follow all wanted jobs; return the readings of those with an interval."""
        ...


@dataclass(frozen=True, slots=True)
class _Directory:
    logs: LogSource
    worker: WorkerThread


class Sources:
    """Asks every source within its time limit, and never raises an error of a source."""

    def __init__(
        self,
        settings: CollectorSettings,
        *,
        clock: Clock,
        offsets: OffsetSource,
        master: MasterSource,
        logs: Callable[[Path], LogSource],
        metrics: CollectorMetrics,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._offsets = offsets
        self._master = master
        self._open_logs = logs
        self._metrics = metrics
        self._kafka_worker = WorkerThread("kafka")
        self._directories: dict[str, _Directory] = {}
        self._silent: set[str] = set()

    async def kafka(self, topics: Collection[str]) -> tuple[EndOffsets | None, datetime]:
        """Return the end offsets and the time of the measurement."""
        call = self._kafka_worker.call(self._settings.kafka_timeout_seconds, self._offsets.end_offsets, topics)
        ends = await self.bounded("kafka", call)
        return ends, self._clock.now()

    async def master(self, url: str) -> MasterView | None:
        """Return the state of the master at `url`."""
        view = asyncio.wait_for(self._master.view(url), self._settings.master_timeout_seconds)
        return await self.bounded(f"master {url}", view)

    async def logs(self, where: str, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading] | None:
        """Follow the logs of all wanted jobs in one directory; return the readings of those with an interval."""
        directory = self._directories.get(where)
        if directory is None:
            directory = _Directory(self._open_logs(local_path(where)), WorkerThread(f"logs {where}"))
            self._directories[where] = directory
        call = directory.worker.call(self._settings.log_timeout_seconds, directory.logs.read, wanted)
        return await self.bounded(f"logs {where}", call)

    async def bounded(self, source: str, answer: Awaitable[T]) -> T | None:
        """Return an answer, or None when the source fails or is too slow."""
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - one source must not stop the others
            self._metrics.source_failures.labels(source.partition(" ")[0]).inc()
            if source not in self._silent:
                self._silent.add(source)
                log.warning("%s does not answer: %s: %s", source, type(error).__name__, error)
            return None
        if source in self._silent:
            self._silent.discard(source)
            log.info("%s answers again", source)
        return result

    def close(self) -> None:
        """End the threads."""
        for worker in (self._kafka_worker, *(directory.worker for directory in self._directories.values())):
            worker.close()


def local_path(event_log_dir: str) -> Path:
    """Return the path of an event log directory, given as a path or a `file:` URL."""
    parts = urlsplit(event_log_dir)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(event_log_dir)
