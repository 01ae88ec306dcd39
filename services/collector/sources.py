"""The sources of a round, each asked within its own time: Kafka, the masters, the log directories.

A source that fails or takes too long answers None, which the snapshots then name as missing. It is said once when a
source falls silent and once when it answers again.
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

from services.collector.log_directory import JobReading
from services.collector.master import MasterView
from services.collector.metrics import Metrics
from services.collector.offsets import EndOffsets
from services.collector.owner import OwnerThread
from services.collector.run import Interval
from services.collector.settings import CollectorSettings
from tidegate.runtime.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")


class Offsets(Protocol):
    """Who knows the end offsets; `offsets.KafkaOffsets` is one. Blocking."""

    def end_offsets(self, topics: Collection[str]) -> EndOffsets:
        """Return the end offsets of topics."""
        ...


class Master(Protocol):
    """Who knows the clusters; `master.HttpMaster` is one."""

    async def view(self, ui_url: str) -> MasterView:
        """Return what the master at a URL says."""
        ...


class Logs(Protocol):
    """One directory of event logs; `log_directory.LogDirectory` is one. Blocking."""

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Follow all wanted jobs; return the readings of those with an interval."""
        ...


@dataclass(frozen=True, slots=True)
class _Directory:
    logs: Logs
    owner: OwnerThread


class Sources:
    """Asks, waits no longer than the settings say, and never raises for what a source does."""

    def __init__(
        self,
        settings: CollectorSettings,
        *,
        clock: Clock,
        offsets: Offsets,
        master: Master,
        logs: Callable[[Path], Logs],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._offsets = offsets
        self._master = master
        self._open_logs = logs
        self._metrics = metrics
        self._kafka_owner = OwnerThread("kafka")
        self._directories: dict[str, _Directory] = {}
        self._silent: set[str] = set()

    async def kafka(self, topics: Collection[str]) -> tuple[EndOffsets | None, datetime]:
        """Return the end offsets and when they were read, or would have been."""
        call = self._kafka_owner.call(self._settings.kafka_timeout_seconds, self._offsets.end_offsets, topics)
        ends = await self.bounded("kafka", call)
        return ends, self._clock.now()

    async def master(self, url: str) -> MasterView | None:
        """Return what the master at `url` says."""
        view = asyncio.wait_for(self._master.view(url), self._settings.master_timeout_seconds)
        return await self.bounded(f"master {url}", view)

    async def logs(self, where: str, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading] | None:
        """Follow the logs of all wanted jobs in one directory; return the readings of those with an interval."""
        directory = self._directories.get(where)
        if directory is None:
            directory = _Directory(self._open_logs(local_path(where)), OwnerThread(f"logs {where}"))
            self._directories[where] = directory
        call = directory.owner.call(self._settings.log_timeout_seconds, directory.logs.read, wanted)
        return await self.bounded(f"logs {where}", call)

    async def bounded(self, source: str, answer: Awaitable[T]) -> T | None:
        """Return an answer, or None when the source fails or is too slow."""
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - whatever a source does, the others go on
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
        """Let the threads end."""
        for owner in (self._kafka_owner, *(directory.owner for directory in self._directories.values())):
            owner.close()


def local_path(event_log_dir: str) -> Path:
    """Return the path of an event log directory: a path or a `file:` URL; others cannot be listed from here."""
    parts = urlsplit(event_log_dir)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(event_log_dir)
