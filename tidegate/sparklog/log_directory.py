"""A directory of event logs: finds the newest run of each job and reads it.

Every new log is opened, newest first, and read up to its application's start. There `spark.tidegate.job_id`, or else
the application's name, names the job. Only a job's newest run is followed, plus the previous run until the newer one
has committed something: during a handover the old driver still works while the new one warms up. A log without new
bytes costs one stat call.

One thread uses a directory (`worker.py`); what it returns is frozen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from tidegate.events.invalid import first_problem
from tidegate.remote.files import Entry, Place, RemotePath, scan
from tidegate.runtime.logs import about
from tidegate.sparklog.application_run import ApplicationRun, Interval, Reading
from tidegate.sparklog.event_log import IN_PROGRESS, ROLLING_PREFIX, ApplicationLog, UnreadableLog, log_stem
from tidegate.sparklog.parse import BrokenLine, parse

log = logging.getLogger(__name__)

T = TypeVar("T")

HEAD_STEP_BYTES = 16_384
HEAD_STEPS = 64
"""Spark writes the application's start within about 30 kB; a file without it after a megabyte is not an event log."""
HEAD_BYTES = HEAD_STEPS * HEAD_STEP_BYTES
HEADS = 64
"""How many logs are identified before those that are wanted are kept and the others forgotten."""
BROKEN_LINES_NAMED = 5
"""Broken lines of a log that are logged one by one; further ones are only counted."""
READERS = 8
"""How many logs or checkpoints elsewhere are read at once: each takes a few requests, which mostly wait."""
CLOCKS_APART = timedelta(hours=1)
"""The clocks of two drivers differ by less."""


@dataclass(frozen=True, slots=True)
class JobReading:
    """What a job's logs say about one interval: one reading, or during a handover two, the older first."""

    runs: tuple[Reading, ...]
    complete: bool
    """False if the newest log could not be read to its end, so that missing events mean nothing."""
    grown_at: datetime | None
    """When the newest log was last seen to grow, by the collector's clock; until then when it was written, by that of
    the file system."""

    @property
    def works_untold(self) -> bool:
        """Whether a query works that has not told what it reads: the log shows no batch of it."""
        return any(run.query_active and not run.all_told for run in self.runs)


class _Followed:
    """One log with its run."""

    def __init__(self, path: Place, on_broken: Callable[[], None]) -> None:
        self.log = ApplicationLog(path)
        self.run = ApplicationRun()
        self.complete = False
        self.appeared = 0
        """In which listing it was first seen."""
        self.absent = 0
        """How often in a row it was not there."""
        self._broken = 0
        self._problem = ""
        self._on_broken = on_broken

    def read_head(self) -> bool:
        """Read up to the application's start; return False if it is not written yet."""
        for _ in range(HEAD_STEPS):  # in small steps: most logs are old ones, of which nothing more is needed
            if self.run.started is not None or not self._take(HEAD_STEP_BYTES):
                break
        return self.run.started is not None and self.run.job_id is not None

    def read_on(self, limit_bytes: int) -> None:
        """Read what was added."""
        with about(job_id=str(self.run.job_id)):
            try:
                self._take(limit_bytes)
                self.complete = self.log.caught_up()
                self.absent = 0
            except OSError as error:
                self.absent = self.absent + 1 if isinstance(error, FileNotFoundError) else 0
                self.complete = self.run.ended is not None  # the log of an ended run may be deleted
                if str(error) != self._problem:
                    log.warning("cannot follow an event log: %s", error)
                self._problem = str(error)

    def _take(self, limit_bytes: int) -> int:
        """Return how many bytes were read; a step may end inside its first line."""
        before = self.log.bytes_read
        for line in self.log.lines(limit_bytes):
            try:
                event = parse(line)
                if event is not None:
                    self.run.apply(event)
            except BrokenLine as error:
                self._broken += 1
                self._on_broken()
                if self._broken <= BROKEN_LINES_NAMED:
                    log.warning("%s: skipped broken line %d: %s", self.log.path, self._broken, error)
        return self.log.bytes_read - before


class LogDirectory:
    """Follows the newest run of each wanted job in one directory."""

    def __init__(self, path: Place, *, limit_bytes: int, on_broken: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._readers = READERS if isinstance(path, RemotePath) else 1
        self._limit = limit_bytes
        self._on_broken = on_broken
        self._done: set[str] = set()
        self._listings = 0
        self._appeared: dict[str, int] = {}
        """In which listing a log was first seen, by stem."""
        self._unnamed: dict[str, _Followed] = {}
        self._refused: dict[str, str] = {}
        self._unwanted: dict[str, str] = {}
        """Job ids of unwanted logs by stem. Nothing else is kept of them, because a directory may see thousands."""
        self._jobs: dict[str, list[_Followed]] = {}
        self._by_stem: dict[str, _Followed] = {}

    def read(self, wanted: Mapping[str, Interval | None]) -> dict[str, JobReading]:
        """Follow the logs of all `wanted` jobs; return the readings of those with an interval.

        A job without a log has a reading without runs, and one whose log cannot be right has none. Raises `OSError` if
        the directory cannot be listed.
        """
        self._forget_unwanted(wanted)
        self._find(wanted)
        logs = [each for job_id in wanted for each in self._jobs.get(job_id, ())]
        act_on(logs, lambda each: each.read_on(self._limit), self._readers)
        readings = {}
        for job_id, interval in wanted.items():
            followed = self._jobs.get(job_id, [])
            self._drop_replaced(followed)
            if interval is None:
                continue
            try:
                readings[job_id] = JobReading(
                    runs=tuple(each.run.cut(interval) for each in followed),
                    complete=all(each.complete for each in followed),
                    grown_at=followed[-1].log.modified_at if followed else None,
                )
            except ValidationError as error:  # of a sum, while no line is broken: it must not hide the other jobs
                with about(job_id=job_id):
                    log.warning("job %s: its event log cannot be right: %s", job_id, first_problem(error))
        return readings

    def _forget_unwanted(self, wanted: Collection[str]) -> None:
        """Forget the logs of jobs that are no longer wanted; if needed again, they are found like new ones."""
        for job_id in self._jobs.keys() - wanted:
            stems = {stem for stem, each in self._by_stem.items() if each in self._jobs[job_id]}
            self._by_stem = {stem: each for stem, each in self._by_stem.items() if stem not in stems}
            self._done -= stems
            del self._jobs[job_id]

    def _find(self, wanted: Collection[str]) -> None:
        """Identify new logs, newest first, and follow renames."""
        fresh: list[tuple[float, Place]] = []
        listed: set[str] = set()
        self._listings += 1
        for entry in self._entries():
            if entry.name.startswith("."):
                continue
            stem = log_stem(entry.name)
            listed.add(stem)
            self._appeared.setdefault(stem, self._listings)
            if self._unwanted.get(stem) in wanted:
                self._done.discard(stem)
                del self._unwanted[stem]
            if (known := self._by_stem.get(stem)) is not None:
                known.appeared = self._appeared[stem]  # if the directory was away, with all that is listed again
                if known.log.path.name != entry.name:
                    known.log.renamed(self._path / entry.name)
            elif stem not in self._done:
                try:
                    if entry.name.startswith(ROLLING_PREFIX) or entry.is_file():
                        fresh.append((entry.stat().st_mtime, self._path / entry.name))
                except FileNotFoundError:
                    pass  # deleted or renamed since the listing
                except OSError as error:  # such as a circle of links
                    self._refuse(stem, error)
        self._done &= listed
        self._appeared = {stem: listing for stem, listing in self._appeared.items() if stem in listed}
        self._unwanted = {stem: job_id for stem, job_id in self._unwanted.items() if stem in listed}
        self._unnamed = {stem: followed for stem, followed in self._unnamed.items() if stem in listed}
        self._refused = {stem: error for stem, error in self._refused.items() if stem in listed}
        fresh.sort(key=lambda each: (each[0], each[1].name), reverse=True)
        for first in range(0, len(fresh), HEADS):
            some = [path for _, path in fresh[first : first + HEADS]]
            heads: dict[Place, _Followed] = {}
            act_on(some, partial(self._identify, heads), self._readers)
            for path in (path for path in some if path in heads):
                self._take_in(log_stem(path.name), heads[path], wanted)

    def _entries(self) -> Iterable[Entry]:
        try:
            return scan(self._path)
        except FileNotFoundError:
            if isinstance(self._path, RemotePath) and not self._path.has_folders:
                return []  # nobody has logged yet
            raise

    def _identify(self, heads: dict[Place, _Followed], path: Place) -> None:
        """Put a log among the `heads` if it names its job."""
        stem = log_stem(path.name)
        try:
            followed = self._unnamed.pop(stem, None) or _Followed(path, self._on_broken)
            if followed.read_head():
                heads[path] = followed
            elif (path.name.endswith(IN_PROGRESS) or path.is_dir()) and followed.log.rest_bytes <= HEAD_BYTES:
                self._unnamed[stem] = followed  # not written yet: try again later
            else:
                self._done.add(stem)
        except FileNotFoundError:
            pass  # deleted or renamed since the listing
        except UnreadableLog as error:
            log.warning("ignored an event log: %s", error)
            self._done.add(stem)
        except OSError as error:  # perhaps another user's: Spark lets only owner and group read
            self._refuse(stem, error)

    def _take_in(self, stem: str, followed: _Followed, wanted: Collection[str]) -> None:
        self._done.add(stem)
        job_id = str(followed.run.job_id)
        if job_id in wanted:
            self._follow(stem, job_id, followed)
        else:
            self._unwanted[stem] = job_id

    def _refuse(self, stem: str, error: OSError) -> None:
        if self._refused.get(stem) != str(error):
            log.warning("ignored an event log until it can be read: %s", error)
        self._refused[stem] = str(error)

    def _follow(self, stem: str, job_id: str, followed: _Followed) -> None:
        """Follow a run if it is its job's newest."""
        job = self._jobs.setdefault(job_id, [])
        followed.appeared = self._appeared[stem]
        if job and not _is_newer(followed, job[-1]):
            return
        followed.log.skip_to_recent()
        job.append(followed)
        self._by_stem[stem] = followed

    def _drop_replaced(self, followed: list[_Followed]) -> None:
        """Drop runs that a newer run has replaced; the newer run inherits their committed offsets."""
        while len(followed) > 1:
            old, new = followed[0].run, followed[1].run
            # A driver that was killed says no end, and its log may be deleted before the new run commits anything.
            deleted = followed[0].absent > 1 and not followed[1].absent
            if len(followed) == 2 and old.ended is None and not new.has_committed and not deleted:
                return
            new.inherited = old.committed
            new.inherited_assigned = old.assigned
            gone = followed.pop(0)
            self._by_stem = {stem: each for stem, each in self._by_stem.items() if each is not gone}


def act_on(things: Sequence[T], act: Callable[[T], None], threads: int) -> None:
    """Do something with each, some at once, in threads that keep no process alive; raise the first error."""
    errors: list[BaseException] = []

    def work(some: Sequence[T]) -> None:
        try:
            for each in some:
                act(each)
        except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
            errors.append(error)

    if threads == 1:
        work(things)
    else:
        parts = (things[first::threads] for first in range(threads))
        working = [threading.Thread(target=work, args=(part,), daemon=True) for part in parts if part]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
    if errors:
        raise errors[0]


def _is_newer(one: _Followed, other: _Followed) -> bool:
    """Whether a run is newer than another: its log appeared later, even if the clock of its driver is behind.

    A log whose run started long before is an old one that was put back.
    """
    if one.appeared == other.appeared:
        return _start(one) > _start(other)
    return one.appeared > other.appeared and _start(one) > _start(other) - CLOCKS_APART


def _start(followed: _Followed) -> datetime:
    assert followed.run.started is not None  # noqa: S101 - only identified runs are followed
    return followed.run.started.at
