"""The fleet as its events tell it: each job's present state, its last hours, and what happened to it. Pure.

`Fleet.take` folds one event in; events of one job must come in order per topic, but topics may come in any order. What
is kept per job is bounded: a timeline, the newest decision without its keyframe, and the newest `LOG_LENGTH` spans of
decisions and changes. Everything else stays on the topics.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Protocol

from tidegate.events.decision import Decision, Status
from tidegate.events.job import JobSpec, SpecChange
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Pool, is_plausible
from tidegate.events.wire import Wire
from tidegate.fleet.changes import result_in_words
from tidegate.fleet.timeline import JobTimeline, TimelinePoint
from tidegate.fleet.warnings import warnings_of
from tidegate.words import size

LOG_LENGTH = 100
"""Spans of decisions kept per job, and as many changes."""
SILENT_INTERVALS = 3
"""A job without a decision for this many of its intervals is silent: its figures are old."""
CLOCK_AHEAD = timedelta(minutes=10)
"""A decision from a clock that is further ahead does not tell how old it is."""


class EntryKind(StrEnum):
    """What an entry of the log is about."""

    DECISION = "decision"
    RESULT = "result"
    OPERATOR = "operator"


@dataclass(slots=True)
class LogEntry:
    """Something that happened to a job."""

    at: datetime
    kind: EntryKind
    word: str
    """Status of the decision, phase of the result, or the operator's name."""
    text: str
    sequence: int | None = None
    """Of the first decision."""
    times: int = 1
    """How many decisions said the same."""
    orders: bool = False
    """Whether the decision has a command."""
    result_id: str = ""
    """Of the result."""


class Trouble(StrEnum):
    """Why a job needs an operator's eye; none of them is ever shown as fine."""

    SILENT = "silent"
    FAILED = "failed"


@dataclass(slots=True)
class FleetJob:
    """What is known of one job."""

    spec: JobSpec
    decision: Decision | None = None
    """The newest one, without its keyframe."""
    state: ClusterState | None = None
    warnings: list[str] = field(default_factory=list)
    """Of the newest snapshot, in words, with what to do."""
    last_result: ActionResult | None = None
    timeline: JobTimeline = field(default_factory=JobTimeline)
    spans: list[LogEntry] = field(default_factory=list)
    """Its decisions, oldest first; those in a row that have the same sizes and status are one entry."""
    changes: list[LogEntry] = field(default_factory=list)
    """Results of commands and what operators did, oldest first."""
    revision: int = 0
    """Rises with every event: a reader that remembers it knows what has changed."""
    place: tuple[int, bytes] | None = None
    """The partition and the key of the newest decision that was read, if it was read from its topic."""
    recalled: bool = False
    """Whether `recall` was called."""
    _said: object = None

    @property
    def mode(self) -> str:
        """The mode in the spec; `stopped` if the job is not meant to run."""
        return self.spec.shown_mode

    def trouble(self, now: datetime) -> Trouble | None:
        """Return why the job's status alone does not tell the truth."""
        if self.state is ClusterState.FAILED:
            return Trouble.FAILED
        return Trouble.SILENT if self.is_silent(now) else None

    def is_silent(self, now: datetime) -> bool:
        """Return whether there is no decision that still holds."""
        return self.decision is None or not -CLOCK_AHEAD <= now - self.decision.decided_at <= self.silent_after

    @property
    def silent_after(self) -> timedelta:
        """How old the newest decision may be."""
        return timedelta(seconds=max(30, SILENT_INTERVALS * self.spec.interval_seconds))

    def urgency(self, now: datetime) -> int:
        """Return 0 for a job that needs an operator first, and more for the others."""
        if self.decision is None or self.trouble(now) is not None:
            return 0 if self.spec.running else 4
        return URGENCY[self.decision.status]

    @property
    def log(self) -> list[LogEntry]:
        """Everything that happened, the newest first."""
        return sorted((*self.changes[::-1], *self.spans[::-1]), key=attrgetter("at"), reverse=True)

    def take_spec(self, spec: JobSpec) -> None:
        """Take in a version of the spec."""
        self.spec = spec
        self._operator(spec.change, spec)

    def take_decision(self, decision: Decision) -> bool:
        """Take in a decision; return False for one that is not newer than the last, or on no possible second.

        Of two on a snapshot, the decider went on from the later one.
        """
        last = (self.decision.sequence, self.decision.decided_at) if self.decision is not None else None
        if not is_plausible(decision.sequence) or (last and (decision.sequence, decision.decided_at) <= last):
            return False
        if decision.keyframe is not None:
            self._operator(decision.keyframe.spec.change, decision.keyframe.spec)
            decision = decision.model_copy(update={"keyframe": None})
        self.decision = decision
        if last is None or decision.sequence > last[0]:
            self.timeline.add(point_of(decision))
        sizes = (decision.current_parallelism, decision.proposed_parallelism, decision.final_parallelism)
        said = (decision.status, *sizes)
        if self.spans and said == self._said and decision.command is None:
            self.spans[-1].times += 1
            return True
        self._said = said
        self.spans.append(
            LogEntry(
                at=decision.decided_at,
                kind=EntryKind.DECISION,
                word=decision.status.value,
                text=decision.sentence,
                sequence=decision.sequence,
                orders=decision.command is not None,
            )
        )
        del self.spans[:-LOG_LENGTH]
        return True

    def recall(self, decisions: Iterable[Decision]) -> None:
        """Take in decisions from before those that are known, oldest first."""
        # A log that is full has lost the oldest of the decisions that the timeline has.
        known = [point.at for point in self.timeline][:1] + [float(span.sequence or 0) for span in self.spans[:1]]
        first = min(known, default=math.inf)
        earlier = FleetJob(self.spec)
        for decision in decisions:
            if decision.sequence < first:
                earlier.take_decision(decision)
        for point in self.timeline:
            earlier.timeline.add(point)
        self.timeline = earlier.timeline
        self.spans = [*earlier.spans, *self.spans][-LOG_LENGTH:]
        noted = {(entry.at, entry.word) for entry in self.changes}
        for entry in earlier.changes:
            if (entry.at, entry.word) not in noted:
                self._note(entry)
        self.recalled = True

    def take_result(self, result: ActionResult) -> bool:
        """Take in a phase of a command; return False for one that is known: an actuator may write it again."""
        if any(entry.result_id == result.result_id for entry in self.changes):
            return False
        self.last_result = result
        text = result_in_words(result, size(result.parallelism))
        word = result.phase.value
        self._note(LogEntry(result.at, EntryKind.RESULT, word, text, result_id=result.result_id))
        return True

    def _operator(self, change: SpecChange | None, spec: JobSpec) -> None:
        """Note who asked for a version; it is seen on the topic and again in a keyframe."""
        if change is None or any(
            (entry.at, entry.word, entry.kind) == (change.at, change.by, EntryKind.OPERATOR) for entry in self.changes
        ):
            return
        if spec.manual is not None and spec.manual.requested_at == change.at:
            asked = f"asked for {size(spec.manual.parallelism)}"
        else:
            asked = f"version {spec.version}, {spec.shown_mode}"
        self._note(LogEntry(change.at, EntryKind.OPERATOR, change.by, f"{asked}: {change.reason}"))

    def _note(self, entry: LogEntry) -> None:
        insort(self.changes, entry, key=attrgetter("at"))
        del self.changes[:-LOG_LENGTH]


URGENCY = {
    Status.FAILED_STATE_LIMIT: 0,
    Status.STOPPED_STATE_LIMIT: 0,
    Status.UNKNOWN: 1,
    Status.LATE: 1,
    Status.POOL_EXHAUSTED: 1,
    Status.PENDING_SCALE_UP: 2,
    Status.PENDING_SCALE_DOWN: 3,
    Status.FINE: 4,
}


@dataclass(slots=True)
class FleetPool:
    """A cluster's slots as the newest snapshot of any of its jobs tells them."""

    slots: Pool
    seen_at: datetime
    job_id: str
    """Whose snapshot it was. Its next one is newer, even if a clock was ahead for this one."""


class Fleet:
    """All jobs that Tidegate manages. Only one thread may use it."""

    def __init__(self) -> None:
        self._jobs: dict[str, FleetJob] = {}
        self.pools: dict[str, FleetPool] = {}
        self.unusable: Mapping[str, str] = {}
        """Jobs whose newest spec cannot be read, with what is wrong with it. The version before may still apply."""
        self.unknown: Mapping[str, Sequence[str]] = {}
        """Fields of the specs that this version does not know, by job: a newer Tidegate has written them."""
        self.revision = 0

    def __iter__(self) -> Iterator[FleetJob]:
        """Iterate over the jobs in the order of their ids."""
        return iter([self._jobs[job_id] for job_id in sorted(self._jobs)])

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: str) -> FleetJob | None:
        """Return a job, or None if Tidegate does not manage it."""
        return self._jobs.get(job_id)

    def remove(self, job_id: str) -> None:
        """Forget a job."""
        if self._jobs.pop(job_id, None) is not None:
            self.revision += 1

    def take_spec(self, spec: JobSpec) -> None:
        """Take in the current spec of a job: it is part of the fleet from then on."""
        job = self._jobs.get(spec.job_id)
        if job is None:
            job = self._jobs[spec.job_id] = FleetJob(spec)
        job.take_spec(spec)
        self._changed(job)

    def take(self, event: Wire) -> None:
        """Take in a snapshot, decision or result; others, and those of a job that is not managed, are skipped."""
        job = self._jobs.get(str(getattr(event, "job_id", "")))
        if job is None:
            return
        match event:
            case Decision():
                if not job.take_decision(event):
                    return
            case ActionResult():
                if not job.take_result(event):
                    return
            case MetricSnapshot():
                job.state, job.warnings = event.state, warnings_of(event)
                self._pool(event)
            case _:
                return
        self._changed(job)

    def _pool(self, snapshot: MetricSnapshot) -> None:
        if snapshot.pool is None:
            return
        known = self.pools.get(snapshot.pool.pool_id)
        if known is None or known.job_id == snapshot.job_id or known.seen_at <= snapshot.observed_at:
            self.pools[snapshot.pool.pool_id] = FleetPool(snapshot.pool, snapshot.observed_at, snapshot.job_id)

    def _changed(self, job: FleetJob) -> None:
        self.revision += 1
        job.revision = self.revision


def point_of(decision: Decision) -> TimelinePoint:
    """Return a decision as a point of a timeline, at its sequence: these rise, whatever the deciders' clocks say."""
    seen = decision.evidence
    return TimelinePoint(
        at=decision.sequence,
        arrival_rate=_known(seen.arrival_rate),
        capacity=_known(seen.true_processing_rate),
        delay_seconds=_known(seen.delay_seconds),
        lag_records=_known(seen.lag_records),
        slots=decision.current_parallelism if decision.size_is_known else math.nan,
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else value


class LiveFleet(Protocol):
    """A fleet that something else keeps up to date; `tidegate.fleet.feed.Feed` is one."""

    @property
    def revision(self) -> int:
        """A number that changes with the fleet."""

    @property
    def state(self) -> str:
        """`live`, `loading` while the history is being read, or what ended the reading."""

    def reading(self) -> AbstractContextManager[Fleet]:
        """Hold the fleet still."""
