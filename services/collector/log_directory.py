"""A directory of event logs: which log is which job's newest run, and what those say.

Finding: every log that appears is opened, newest first, and read up to its application's start, where
`spark.tidegate.job_id` (else the application's name) tells the job. Only a job's newest run is followed, and beside
it the run before for as long as the newer one has committed nothing: in a handover the old driver still works while
the new one warms up. A log that has not grown costs a stat call.

One thread owns a directory (`owner.py`); what it returns is frozen.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from services.collector.event_log import IN_PROGRESS, ROLLING_PREFIX, ApplicationLog, UnreadableLog, log_stem
from services.collector.parse import BrokenLine, parse
from services.collector.run import Interval, Reading, Run

log = logging.getLogger(__name__)

HEAD_STEP_BYTES = 16_384
HEAD_STEPS = 64
"""Spark writes the application's start within some 30 kB; a file without it after a megabyte is no event log."""
BROKEN_LINES_NAMED = 5
"""Broken lines of one log that are named one by one; the rest is only counted."""


@dataclass(frozen=True, slots=True)
class JobReading:
    """What a job's logs say about one interval: one reading, or in a handover two, the older first."""

    runs: tuple[Reading, ...]
    complete: bool
    """False: the newest log could not be read to its end, so its silence means nothing."""
    grown_at: datetime | None
    """When the newest log was last written to, by the file system's clock."""


class _Followed:
    """One log with its run."""

    def __init__(self, path: Path, on_broken: Callable[[], None]) -> None:
        self.log = ApplicationLog(path)
        self.run = Run()
        self.complete = False
        self._broken = 0
        self._problem = ""
        self._on_broken = on_broken

    def read_head(self) -> bool:
        """Read up to the application's start; False when it is not written yet."""
        for _ in range(HEAD_STEPS):  # in small steps: of most logs, which are old ones, nothing more is wanted
            if self.run.started is not None or not self._take(HEAD_STEP_BYTES):
                break
        return self.run.started is not None and self.run.job_id is not None

    def read_on(self, limit_bytes: int) -> None:
        """Take in what has been written since."""
        try:
            self._take(limit_bytes)
            self.complete = self.log.caught_up()
        except OSError as error:
            self.complete = self.run.ended is not None  # its log may be cleaned away
            if str(error) != self._problem:
                log.warning("event log cannot be followed: %s", error)
            self._problem = str(error)

    def _take(self, limit_bytes: int) -> int:
        """Return how many bytes were read; a step may end within its first line."""
        before = self.log.bytes_read
        for line in self.log.lines(limit_bytes):
            try:
                event = parse(line)
            except BrokenLine as error:
                self._broken += 1
                self._on_broken()
                if self._broken <= BROKEN_LINES_NAMED:
                    log.warning("%s: broken line %d skipped: %s", self.log.path, self._broken, error)
                continue
            if event is not None:
                self.run.apply(event)
        return self.log.bytes_read - before


class LogDirectory:
    """Follows the newest run of each wanted job in one directory."""

    def __init__(self, path: Path, *, limit_bytes: int, on_broken: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._limit = limit_bytes
        self._on_broken = on_broken
        self._done: set[str] = set()
        self._unnamed: dict[str, _Followed] = {}
        self._refused: dict[str, str] = {}
        self._strangers: dict[str, str] = {}
        """By stem, whose the logs are that nobody wants; more is not kept of them: a directory may see thousands."""
        self._jobs: dict[str, list[_Followed]] = {}
        self._by_stem: dict[str, _Followed] = {}

    def read(self, wanted: Mapping[str, Interval | None]) -> dict[str, JobReading]:
        """Follow the logs of all `wanted` jobs; return the readings of those with an interval.

        A job without any log has a reading without runs. Raises `OSError` if the directory cannot be listed.
        """
        self._forget_all_but(wanted)
        self._find(wanted)
        readings = {}
        for job_id, interval in wanted.items():
            followed = self._jobs.get(job_id, [])
            for each in followed:
                each.read_on(self._limit)
            self._let_go_of_old(followed)
            if interval is not None:
                readings[job_id] = JobReading(
                    runs=tuple(each.run.cut(interval) for each in followed),
                    complete=all(each.complete for each in followed),
                    grown_at=followed[-1].log.modified_at if followed else None,
                )
        return readings

    def _forget_all_but(self, wanted: Collection[str]) -> None:
        """Let go of the logs of jobs that are no longer wanted; they are found again like those of a stranger."""
        for job_id in self._jobs.keys() - wanted:
            stems = {stem for stem, each in self._by_stem.items() if each in self._jobs[job_id]}
            self._by_stem = {stem: each for stem, each in self._by_stem.items() if stem not in stems}
            self._done -= stems
            del self._jobs[job_id]

    def _find(self, wanted: Collection[str]) -> None:
        """Identify the logs that have appeared, newest first, and follow renames."""
        fresh: list[tuple[float, Path]] = []
        listed: set[str] = set()
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                stem = log_stem(entry.name)
                listed.add(stem)
                if self._strangers.get(stem) in wanted:
                    self._done.discard(stem)
                    del self._strangers[stem]
                known = self._by_stem.get(stem)
                if known is not None and known.log.path.name != entry.name:
                    known.log.renamed(Path(entry.path))
                elif stem not in self._done and (entry.name.startswith(ROLLING_PREFIX) or entry.is_file()):
                    with suppress(FileNotFoundError):  # gone or renamed since it was listed
                        fresh.append((entry.stat().st_mtime, Path(entry.path)))
        self._done &= listed
        self._strangers = {stem: job_id for stem, job_id in self._strangers.items() if stem in listed}
        self._unnamed = {stem: followed for stem, followed in self._unnamed.items() if stem in listed}
        self._refused = {stem: error for stem, error in self._refused.items() if stem in listed}
        for _, path in sorted(fresh, reverse=True):
            self._identify(path, wanted)

    def _identify(self, path: Path, wanted: Collection[str]) -> None:
        stem = log_stem(path.name)
        try:
            followed = self._unnamed.pop(stem, None) or _Followed(path, self._on_broken)
            if not followed.read_head():
                if path.name.endswith(IN_PROGRESS) or path.is_dir():
                    self._unnamed[stem] = followed  # not written yet: looked at again
                else:
                    self._done.add(stem)
                return
        except FileNotFoundError:
            return  # gone or renamed since it was listed
        except UnreadableLog as error:
            log.warning("event log passed over: %s", error)
            self._done.add(stem)
            return
        except OSError as error:  # another user's, perhaps: Spark lets only owner and group read
            if self._refused.get(stem) != str(error):
                log.warning("event log passed over until it can be read: %s", error)
            self._refused[stem] = str(error)
            return
        self._done.add(stem)
        job_id = str(followed.run.job_id)
        if job_id in wanted:
            self._adopt(stem, job_id, followed)
        else:
            self._strangers[stem] = job_id

    def _adopt(self, stem: str, job_id: str, followed: _Followed) -> None:
        """Follow a run if it is its job's newest."""
        job = self._jobs.setdefault(job_id, [])
        if job and _start(followed) <= _start(job[-1]):
            return
        followed.log.skip_to_recent()
        job.append(followed)
        self._by_stem[stem] = followed

    def _let_go_of_old(self, followed: list[_Followed]) -> None:
        """Drop runs that a newer one has replaced, handing on what they had committed."""
        while len(followed) > 1:
            old, new = followed[0].run, followed[1].run
            if len(followed) == 2 and old.ended is None and not new.has_committed:
                return
            new.inherited = old.committed
            gone = followed.pop(0)
            self._by_stem = {stem: each for stem, each in self._by_stem.items() if each is not gone}


def _start(followed: _Followed) -> datetime:
    assert followed.run.started is not None  # noqa: S101 - only identified runs are adopted
    return followed.run.started.at
