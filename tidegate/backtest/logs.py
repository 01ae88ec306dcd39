"""Reads a folder of Spark event logs: every run of a streaming query, one application after the other.

A log that cannot be read, or that holds no batch of a streaming query, is left out and named with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from tidegate.remote.files import Entry, Place, names, scan
from tidegate.sparklog import events
from tidegate.sparklog.event_log import IN_PROGRESS, ROLLING_PREFIX, ApplicationLog, log_stem
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.parse import BrokenLine, parse
from tidegate.sparklog.rehearsals import Rehearsals

STEP_BYTES = 1 << 20
MOST_BROKEN = 0.01
"""The largest share of lines that may be unreadable; with more, figures would be missing without anyone noticing."""

_KINDS = frozenset(
    {
        b"SparkListenerEnvironmentUpdate",
        b"SparkListenerApplicationStart",
        b"SparkListenerApplicationEnd",
        b"SparkListenerExecutorAdded",
        b"SparkListenerExecutorRemoved",
        b"QueryStartedEvent",
        b"QueryIdleEvent",
        b"QueryProgressEvent",
        b"QueryTerminatedEvent",
    }
)
"""What is read; tasks, stages and plans are most of a log's bytes."""
_PLAN = b'{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"'
_STATE = re.compile(rb"checkpoint = (?:file:)?([^,\s\\]+)/state\b")
"""In the plan of a stateful query: where its state is, below its checkpoint."""

_DRIVER = re.compile(
    rb'\{"Event":"SparkListenerBlockManagerAdded","Block Manager ID":\{"Executor ID":"driver".*"Timestamp":(\d+)'
)
_TASK = b'{"Event":"SparkListenerTaskEnd"'
_TASK_FIGURES = (
    re.compile(rb'"Task End Reason":\{"Reason":"Success"\}'),
    re.compile(rb'"Launch Time":(\d+),"Executor ID":"([^"]*)"'),
    re.compile(rb'"Finish Time":(\d+)'),
)
"""What a successful task tells, in this order. As one pattern, a line made for it would take hours."""
_RECORDS = re.compile(rb'"Records Read":(\d+)')
FIRST_TASKS = 40
"""So many tasks of each executor are read: the first ones show how cold it was, the others how long a task takes."""

Progress = Callable[[int, int], None]
"""Called with how many of how many are done."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One finished micro-batch. Instants are epoch seconds."""

    query_id: str
    batch_id: int
    started_at: float
    seconds: float
    add_batch_seconds: float | None
    input_records: int
    output_records: int | None
    start: PartitionOffsets
    end: PartitionOffsets
    latest: PartitionOffsets
    """The topics' end offsets when it was planned; where the source did not tell them, the offsets it read up to."""

    @property
    def ended_at(self) -> float:
        """When it was committed."""
        return self.started_at + self.seconds


@dataclass
class Run:
    """One run of an application. Instants are epoch seconds."""

    log: str
    """Name of its log."""
    name: str = ""
    """The application's name, or the job that Tidegate started it for."""
    app_id: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    query_at: float | None = None
    """When its first query started."""
    spark: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    checkpoint: str | None = None
    """Of a stateful query, whose plan names it."""
    local_cores: int | None = None
    driver_at: float | None = None
    """When the driver was ready to ask for executors."""
    first_tasks: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """(seconds, records read) of the first tasks of each executor, in the order in which they ended."""
    executors: list[tuple[float, str, int]] = field(default_factory=list)
    """(when, executor, cores): 0 cores when it was gone."""
    batches: list[LogBatch] = field(default_factory=list)
    idle: list[tuple[float, str]] = field(default_factory=list)
    """(when, query): everything that had arrived was committed."""
    done: dict[str, float] = field(default_factory=dict)
    """When queries have ended without a failure."""
    sources: set[str] = field(default_factory=set)
    """What Spark calls the sources of its queries."""
    compacted: bool = False
    """Whether the history server has compacted the log: then it lacks executors that were gone by then."""
    last_at: float = 0.0
    """The newest instant in the log."""

    def number(self, setting: str) -> int | None:
        """Return a setting that is a whole number; None if it is not set, or hidden."""
        text = self.spark.get(setting, "").strip()
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None

    def slots(self) -> list[tuple[float, int]]:
        """Return (when, slots) at each change, oldest first; an executor's slots are its cores over a task's."""
        per_task = self.number("spark.task.cpus") or 1
        if self.local_cores is not None and not self.executors:
            return [(self.started_at, self.local_cores // per_task)]
        held: dict[str, int] = {}
        found = [(self.started_at, 0)]
        for at, executor, cores in sorted(self.executors, key=lambda change: change[0]):
            held[executor] = cores // per_task
            found.append((at, sum(held.values())))
        return found


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A log, or a job, that was left out."""

    name: str
    why: str


class Logs:
    """The logs in a folder, or a single log, by the names of their applications; each log's start tells the name.

    A day of a job may be 100 MB, so the rest of its logs is read once its runs are asked for.
    """

    def __init__(self, path: Place, progress: Progress = lambda _done, _total: None) -> None:
        """Read the starts; `progress` counts the logs. Raises `OSError` if the folder cannot be listed."""
        self.left_out: list[LeftOut] = []
        """What could not be used of all that was read."""
        self._folder = path
        self._logs: dict[str, list[tuple[Place, int]]] = {}
        found = _logs_in(path)
        for done, (log, size) in enumerate(found, 1):
            if (run := self._read(log, start_only=True)) is not None:
                self._logs.setdefault(run.name, []).append((log, size))
            progress(done, len(found))

    @property
    def names(self) -> list[str]:
        """The names of all applications, in order."""
        return sorted(self._logs)

    def size(self, name: str) -> int:
        """Return the bytes of an application's logs, as stored."""
        return sum(size for _, size in self._logs[name])

    def runs(self, name: str, progress: Progress = lambda _done, _total: None) -> tuple[Run, ...]:
        """Read the runs of an application, oldest first: none if no log of it can be used. `progress` counts bytes."""
        runs: dict[tuple[str, float], Run] = {}
        total, before = self.size(name), 0
        for log, size in self._logs[name]:
            run = self._read(log, partial(_further, progress, before, total))
            before += size
            progress(before, total)
            if run is None:
                continue
            key = run.app_id, run.started_at
            whole = max(runs.get(key, run), run, key=attrgetter("last_at"))
            self.left_out += [
                LeftOut(part.log, f"it is of the same run as {whole.log}")
                for part in (runs.get(key), run)
                if part is not None and part is not whole
            ]
            runs[key] = whole
        return tuple(sorted(runs.values(), key=attrgetter("started_at")))

    def _read(
        self, log: Place, progress: Callable[[int], None] = lambda _read: None, *, start_only: bool = False
    ) -> Run | None:
        try:
            return _read(log, progress, start_only=start_only)
        except FileNotFoundError as error:
            if log.name.endswith(IN_PROGRESS) and log != self._folder:  # its application has ended since
                return self._read(self._folder / log_stem(log.name), progress, start_only=start_only)
            self.left_out.append(LeftOut(log.name, str(error)))
        except (_NotUsable, OSError) as error:
            self.left_out.append(LeftOut(log.name, str(error)))
        return None


def _further(progress: Progress, before: int, total: int, read: int) -> None:
    progress(before + read, total)


class _NotUsable(ValueError):
    """The log says nothing that could be backtested."""


def _logs_in(path: Place) -> list[tuple[Place, int]]:
    """Return the logs of a folder with their sizes in bytes, by name; a log itself is the only one."""
    if path.is_file() or path.name.startswith(ROLLING_PREFIX):
        return [(path, _size(path))]
    entries = [entry for entry in scan(path) if not entry.name.startswith(".")]
    logs = sorted(entry.name for entry in entries if entry.name.startswith(ROLLING_PREFIX) or _may_be_log(entry))
    return [(path / name, _size(path / name)) for name in logs]


def _may_be_log(entry: Entry) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a circle of links: reading it says so
        return True


def _size(path: Place) -> int:
    """Return the size of a log, 0 if it is not known: reading it says why."""
    try:
        return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in scan(path))
    except OSError:
        return 0


def _read(path: Place, progress: Callable[[int], None], *, start_only: bool) -> Run:
    """Return the run of a log; with `start_only`, no more than tells its name."""
    run, reader = Run(path.name), None
    lines = broken = 0
    for line in _lines(path, progress):
        lines += bool(line.strip())
        reader = reader or _Reader(run)
        try:
            reader.take(line)
        except BrokenLine as error:
            broken += 1
            if broken > 20 + MOST_BROKEN * lines:
                raise _NotUsable(
                    f"{broken} of its first {lines} lines are not Spark events, such as: {error}"
                ) from None
        if start_only and run.app_id and run.spark:
            return run
    if not run.app_id:
        raise _NotUsable("not an event log of Spark: it holds no start of an application")
    if start_only:
        return run
    if not run.batches:
        kinds = ", ".join(sorted(run.sources))
        raise _NotUsable(
            f"its sources are not Kafka topics, but {kinds}" if kinds else "no micro-batch of a streaming query ended"
        )
    run.compacted = path.is_dir() and any(name.endswith(".compact") for name in names(path))
    return run


def _lines(path: Place, progress: Callable[[int], None]) -> Iterator[bytes]:
    log = ApplicationLog(path)
    while True:
        before = log.bytes_read
        yield from log.lines(STEP_BYTES)
        progress(log.bytes_read)
        if log.bytes_read == before:
            return


class _Reader:
    """Adds a log's lines to a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._newest: dict[str, int] = {}
        self._rehearsals = Rehearsals()

    def take(self, line: bytes) -> None:
        """Add one line; raises `BrokenLine`."""
        try:
            self._take(line)
        except BrokenLine:
            raise
        except (ValueError, OverflowError) as error:  # not UTF-8, or a number of thousands of digits
            raise BrokenLine(str(error)[:200]) from None

    def _take(self, line: bytes) -> None:
        if line.startswith(_PLAN):
            if self._run.checkpoint is None and (state := _STATE.search(line)):
                self._run.checkpoint = state.group(1).decode()
            return
        if line.startswith(_TASK):
            self._task(line)
            return
        if driver := _DRIVER.match(line):
            self._run.driver_at = int(driver.group(1)) / 1000
            return
        event = parse(line, _KINDS)
        if event is not None and not self._rehearsals.has(event):
            self._add(event)

    def _add(self, event: events.SparkEvent) -> None:
        run = self._run
        match event:
            case events.ApplicationProperties():
                run.spark, run.command = event.spark, event.command
                run.name = event.job_id or event.app_name or run.name
            case events.ApplicationStarted():
                run.app_id, run.started_at = event.app_id, event.at.timestamp()
                run.name = run.name or event.app_name
                self._seen(run.started_at)
            case events.ApplicationEnded():
                run.ended_at = event.at.timestamp()
                self._seen(run.ended_at)
            case events.LocalCores():
                run.local_cores = event.cores
            case events.ExecutorAdded() | events.ExecutorRemoved():
                run.executors.append((event.at.timestamp(), event.executor_id, getattr(event, "cores", 0)))
                self._seen(event.at.timestamp())
            case events.QueryIdle(query_id, at) if at is not None:
                run.idle.append((at.timestamp(), query_id))
                self._seen(at.timestamp())
            case events.QueryStarted():
                run.query_at = run.query_at or event.at.timestamp()
                run.done.pop(event.query_id, None)
            case events.QueryTerminated(query_id, None):
                run.done[query_id] = run.last_at
            case events.QueryProgress():
                self._progress(event)

    def _progress(self, event: events.QueryProgress) -> None:
        """Add a batch; not one without data or without Kafka, nor the repetition of one in a compacted log."""
        self._run.sources |= set(event.sources)
        self._seen(event.finished_at.timestamp())
        if not event.committed or event.batch_id <= self._newest.get(event.query_id, -1):
            return
        if event.add_batch_seconds is None:
            return
        self._newest[event.query_id] = event.batch_id
        self._run.batches.append(
            LogBatch(
                event.query_id,
                event.batch_id,
                event.started_at.timestamp(),
                event.duration_seconds,
                event.add_batch_seconds,
                event.input_records,
                event.output_records,
                event.start,
                event.committed,
                {
                    topic: {**ends, **{p: end for p, end in event.latest.get(topic, {}).items() if p in ends}}
                    for topic, ends in event.committed.items()
                },
            )
        )

    def _task(self, line: bytes) -> None:
        figures, at = list[bytes](), 0
        for pattern in _TASK_FIGURES:
            if (found := pattern.search(line, at)) is None:
                return
            figures, at = [*figures, *found.groups()], found.end()
        launched, executor, finished = figures
        theirs = self._run.first_tasks.setdefault(executor.decode(), [])
        if len(theirs) < FIRST_TASKS:
            records = _RECORDS.search(line)
            seconds = (int(finished) - int(launched)) / 1000
            theirs.append((seconds, int(records.group(1)) if records else 0))

    def _seen(self, at: float) -> None:
        self._run.last_at = max(self._run.last_at, at)
