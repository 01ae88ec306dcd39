"""Cutting snapshots again from Spark's event logs, to compare them with the recorded ones figure by figure.

The collector reads a log while it grows, and cuts a snapshot from what it has read so far. How far that was is not
recorded, but it was some whole number of events, and never fewer than for the snapshot before. So a recorded snapshot
is proved if one of those numbers gives its figures. If none does, the closest one tells which figure differs.

Not everything in a snapshot comes from a log: end offsets are the broker's, slots and pool the master's, and where a
log does not tell the committed offsets, they are the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import Any

from pydantic_core import to_json

from tidegate.events.snapshot import ALIVE, MetricSnapshot, Part, StageTasks, StateOperator, is_plausible
from tidegate.remote.files import Place, scan
from tidegate.replay.difference import first_difference
from tidegate.sparklog import events
from tidegate.sparklog.application_run import MAX_STAGES, ApplicationRun, Interval, Reading
from tidegate.sparklog.event_log import ROLLING_PREFIX, ApplicationLog
from tidegate.sparklog.parse import BrokenLine, parse

AHEAD = timedelta(seconds=30)
"""How much later than its interval's end a snapshot may have been cut."""
STEP_BYTES = 1 << 20
HEAD_EVENTS = 1000
"""The application's start is among the first of these; a file without it is not an event log."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One event log, and whose it is."""

    job_id: str
    app_id: str
    started_at: datetime
    path: Place


@dataclass(frozen=True, slots=True)
class PlacedSnapshot:
    """A recorded snapshot and its place on the topic."""

    snapshot: MetricSnapshot
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class CutFigure:
    """What became of one snapshot, or of one figure of it."""

    verdict: str
    """`ok`, `finding` or `not provable`."""
    of: PlacedSnapshot
    figure: str = ""
    """The field that differs, as `batches.0.input_records`."""
    recorded: str = ""
    cut: str = ""
    """What the log says; or why nothing can be said."""


def logged_runs(folder: Place) -> list[LoggedRun]:
    """Return all event logs in a folder, by job and start; raises `OSError` if it cannot be listed."""
    folder = folder.absolute() if isinstance(folder, Path) else folder  # workers start in folders of their own
    found = []
    for entry in scan(folder):
        path, run = folder / entry.name, ApplicationRun()
        try:
            if entry.name.startswith(".") or not (entry.name.startswith(ROLLING_PREFIX) or entry.is_file()):
                continue
            for number, event in enumerate(events_of(path)):
                _apply(run, event)
                if (run.started and run.job_id) or number > HEAD_EVENTS:
                    break
        except OSError:
            continue  # another codec, another user's, a circle of links: its snapshots are not provable
        if run.started is not None and run.job_id is not None:
            found.append(LoggedRun(run.job_id, run.started.app_id, run.started.at, path))
    return sorted(found, key=lambda each: (each.job_id, each.started_at))


def events_of(path: Place) -> Iterator[events.SparkEvent]:
    """Yield the events of a log; broken lines are skipped. Raises `OSError` if it cannot be read."""
    log = ApplicationLog(path)
    read = -1
    while read != log.bytes_read:
        read = log.bytes_read
        for line in log.lines(STEP_BYTES):
            try:
                event = parse(line)
            except BrokenLine:
                continue
            if event is not None:
                yield event


def _apply(run: ApplicationRun, event: events.SparkEvent) -> None:
    """Add an event, unless it has figures that no snapshot may hold."""
    with suppress(BrokenLine):
        run.apply(event)


def compare_with_logs(
    snapshots: Iterable[PlacedSnapshot], logs: Sequence[LoggedRun], found: Callable[[CutFigure], None]
) -> None:
    """Cut the snapshots of one job again and tell `found` what became of each.

    Args:
        snapshots: of one job, by sequence.
        logs: the logs of that job, by start.
        found: called at least once for every snapshot of a run.
    """
    runs = {log.app_id: _RunCutter(log, before) for before, log in zip([None, *logs], logs, strict=False)}
    unreadable: dict[str, str] = {}
    """Why a log could not be read, by application. None of its run's snapshots can be proved then."""
    previous: int | None = None
    for placed in snapshots:
        shot = placed.snapshot
        if shot.sequence == previous:
            continue  # measured twice: the first one counts, as for the decider
        gap = previous is None or shot.sequence - previous != shot.interval_seconds
        previous = shot.sequence
        if shot.incarnation is None or _names_nothing(shot):
            continue
        run = runs.get(shot.incarnation)
        if run is None:
            why = unreadable.get(shot.incarnation, f"there is no event log of {shot.incarnation}")
            found(CutFigure("not provable", placed, cut=why))
            continue
        try:
            differences = run.compare(shot, first=gap)
        except OSError as error:
            unreadable[shot.incarnation] = f"on {gethostname()}: {error}"
            del runs[shot.incarnation]
            found(CutFigure("not provable", placed, cut=unreadable[shot.incarnation]))
            continue
        for name, was, made in differences:
            found(CutFigure("finding", placed, *_shown(name, was, made)))
        if not differences:
            found(CutFigure("ok", placed))


def _names_nothing(shot: MetricSnapshot) -> bool:
    """Whether no log was read for a snapshot, which says so."""
    return Part.PROGRESS in shot.missing and shot.query_id is None and not shot.batches and not shot.stages


def _shown(name: str, was: Any, made: Any) -> tuple[str, str, str]:
    path, recorded, cut = first_difference(to_json(was), to_json(made))
    return f"{name}.{path}".rstrip("."), recorded, cut


_Difference = tuple[str, Any, Any]
"""Name of a figure, as recorded, as cut again."""


class _RunCutter:
    """Reads one log alongside the snapshots of its run."""

    def __init__(self, log: LoggedRun, before: LoggedRun | None) -> None:
        self._log = log
        self._before = before
        self._inherited: ApplicationRun | None = None
        self._run = ApplicationRun()
        self._rest = events_of(log.path)
        self._ahead: list[events.SparkEvent] = []
        """Events that were read and not yet applied."""

    def compare(self, shot: MetricSnapshot, *, first: bool) -> list[_Difference]:
        """Return the figures that no cut of the log gives; none if one cut gives them all."""
        if not is_plausible(shot.sequence):
            return [("sequence", shot.sequence, None)]
        end = datetime.fromtimestamp(shot.sequence, UTC)
        start = end - timedelta(seconds=shot.interval_seconds)
        # A collector that was restarted takes its first interval for the first of all.
        intervals = [Interval(start, end, each) for each in (first, not first)]
        self._read_ahead(end + AHEAD)
        trial, due = deepcopy(self._run), 0
        closest: list[_Difference] = []
        for count in range(len(self._ahead) + 1):
            if count:
                _apply(trial, self._ahead[count - 1])
                at = _time_of(self._ahead[count - 1])
                due = count if at is not None and at <= end else due
            for interval in intervals:
                if _may_be(shot, trial, interval) and not _differences(shot, trial.reading(interval)):
                    if wrong := self._committed(shot, trial, interval):
                        closest = closest or wrong
                        continue
                    self._commit(trial, count, interval)
                    return []
        for event in self._ahead[:due]:
            _apply(self._run, event)
        if self._run.started is None:
            return [("incarnation", shot.incarnation, None)]
        wrong = (
            closest
            or _differences(shot, self._run.reading(intervals[0]))
            or self._committed(shot, self._run, intervals[0])
        )
        self._commit(self._run, due, intervals[0])
        return wrong

    def _commit(self, run: ApplicationRun, count: int, interval: Interval) -> None:
        run.cut(interval)
        self._run = run
        del self._ahead[:count]

    def _read_ahead(self, until: datetime) -> None:
        """Read up to the first event after `until`."""
        if self._ahead and (at := _time_of(self._ahead[-1])) is not None and at > until:
            return
        for event in self._rest:
            self._ahead.append(event)
            at = _time_of(event)
            if at is not None and at > until:
                return

    def _committed(self, shot: MetricSnapshot, run: ApplicationRun, interval: Interval) -> list[_Difference]:
        read_on = run.reading(interval).reads_on
        tells = run if run.has_committed else self._run_before()
        told, assigned = tells.committed, tells.assigned
        wrong = []
        for source in shot.sources:
            log: Mapping[int, int] = told.get(source.topic, {})
            unread = 0 if source.topic in assigned else None
            made = tuple(log.get(partition, unread) for partition in range(len(source.committed_offsets)))
            untold = read_on and set(source.committed_offsets) == {None}
            if log and made != source.committed_offsets and not untold:
                wrong.append((f"committed_offsets of {source.topic}", source.committed_offsets, made))
        return wrong

    def _run_before(self) -> ApplicationRun:
        """Return the run before this one at its end: what it had committed holds until this one commits."""
        if self._inherited is None:
            self._inherited = ApplicationRun()
            for event in events_of(self._before.path) if self._before else ():
                _apply(self._inherited, event)
        return self._inherited


def _may_be(shot: MetricSnapshot, run: ApplicationRun, interval: Interval) -> bool:
    """Whether a cut can give a snapshot's figures, by their numbers alone."""
    if run.started is None:
        return False
    batches, stages, tasks = run.counts(interval)
    return (
        batches == len(shot.batches) + shot.batches_left_out
        and (len(shot.stages) >= MAX_STAGES or stages == sum(stage.runs for stage in shot.stages))
        and (not _tells_tasks(shot) or tasks == sum(batch.tasks_finished for batch in shot.running or ()))
    )


def _tells_tasks(shot: MetricSnapshot) -> bool:
    return shot.state in ALIVE and Part.TASKS not in shot.missing


def _differences(shot: MetricSnapshot, made: Reading) -> list[_Difference]:
    """Return the figures of a snapshot that a reading does not have; committed offsets are not compared here."""
    pairs: list[_Difference] = [
        ("batches", shot.batches, made.batches),
        ("batches_left_out", shot.batches_left_out, made.batches_left_out),
        ("stages", shot.stages, _as_told(shot.stages, made.stages)),
        ("state_operators", shot.state_operators, _as_counted(shot.state_operators, made.operators)),
        ("gc_ratio", shot.gc_ratio, made.gc_ratio),
        ("query_id", shot.query_id, made.query_id),
    ]
    if shot.query_id is not None:  # before its first query, the start may be the master's
        pairs.append(("incarnation_started_at", shot.incarnation_started_at, made.started_at))
    if shot.state in ALIVE:
        pairs.append(("current_batch_started_at", shot.current_batch_started_at, made.current_batch_started_at))
    if _tells_tasks(shot):
        pairs.append(("running", shot.running or None, made.running or None))
    return [pair for pair in pairs if pair[1] != pair[2]]


def _as_counted(recorded: Sequence[StateOperator], made: Sequence[StateOperator]) -> tuple[StateOperator, ...]:
    """Return operators with 0 rows where an older version of Tidegate has told that of rows that are not counted."""
    zero = {place for place, operator in enumerate(recorded) if operator.rows == 0}
    return tuple(
        operator.model_copy(update={"rows": 0}) if operator.rows is None and place in zero else operator
        for place, operator in enumerate(made)
    )


def _as_told(recorded: Sequence[StageTasks], made: Sequence[StageTasks]) -> tuple[StageTasks, ...]:
    """Return stages without the place of the slowest task, where an older version of Tidegate has not told it."""
    told = {stage.name for stage in recorded if stage.slowest_task_place is not None}
    return tuple(
        stage if stage.name in told else stage.model_copy(update={"slowest_task_place": None}) for stage in made
    )


def _time_of(event: events.SparkEvent) -> datetime | None:
    """Return when an event happened, if it says so."""
    match event:
        case events.QueryProgress():
            return event.finished_at
        case (
            events.JobStarted()
            | events.StageEnded()
            | events.QueryStarted()
            | events.ApplicationStarted()
            | events.ApplicationEnded()
        ):
            return event.at
        case _:
            return None
