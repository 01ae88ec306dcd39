"""What a recording publishes again, and in which order.

Timestamps alone do not give the order. The decider reads specs and results from topics of their own, so it may take in
a spec written just before a snapshot only after that snapshot. The recorded decisions tell: each names the version of
its spec and carries the results that had come in since the one before. A spec or result therefore goes out right before
the first snapshot decided with it. One that no decision used goes out at its own time.

The topic of specs is compacted: Kafka may have dropped older versions before the recording was made. A decision with a
keyframe holds the whole spec, so those versions are published from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode, encode
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL, JOBS, RESULTS, SNAPSHOTS, Topic
from tidegate.events.wire import Wire
from tidegate.replay.files import KafkaRecord, read

W = TypeVar("W", bound=Wire)
Republished = MetricSnapshot | ActionResult | JobSpec
RANK = {JOBS: 0, RESULTS: 1, SNAPSHOTS: 2}
"""Order of records that are due at the same time."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One record to publish."""

    due_ms: int
    """When it is due, on the clock of the recording."""
    topic: Topic
    record: KafkaRecord
    event: Republished | None
    """What the record says; None for one that cannot be read and for a tombstone."""

    @property
    def tombstone(self) -> bool:
        """Whether it removes a job."""
        return self.topic is JOBS and self.record.value is None

    @property
    def pipeline(self) -> bytes:
        """The pipeline whose order this record belongs to."""
        return self.event.pipeline_id.encode() if self.event else self.record.key or b""


@dataclass(frozen=True, slots=True)
class _Uses:
    """When the recorded decisions first used each spec and each result, in milliseconds, and the specs they hold."""

    specs: dict[tuple[str, int], int]
    """By job id and version."""
    results: dict[str, int]
    """By result id."""
    kept: dict[tuple[str, int], JobSpec]
    """Specs in keyframes, by job id and version."""


def schedule(directory: Path, *, job: str | None = None, whole: bool = False) -> list[Departure]:
    """Return the snapshots of a recording, with `whole` also its specs and results, in the order to publish them.

    `job` keeps the records of one job.
    """
    snapshots = list(_departures(directory, MetricSnapshot, job))
    if not whole:
        return sorted(snapshots, key=_order)
    uses = _uses(directory, snapshots)
    specs = list(_departures(directory, JobSpec, job))
    present = {(d.event.job_id, d.event.version) for d in specs if isinstance(d.event, JobSpec)}
    specs += [_from_keyframe(spec, uses) for key, spec in uses.kept.items() if key not in present]
    start = min((d.due_ms for d in snapshots), default=0)
    others = [_timed(d, uses, start) for d in [*specs, *_departures(directory, ActionResult, job)]]
    return sorted([*snapshots, *others], key=_order)


def _departures(directory: Path, model: type[Republished], job: str | None) -> Iterator[Departure]:
    topic = BY_MODEL[model]
    for record in read(directory, topic.suffix):
        event = readable(model, record)
        if job is None or (event.job_id == job if event else topic is JOBS and record.key == job.encode()):
            yield Departure(record.timestamp_ms, topic, record, event)


def readable(model: type[W], record: KafkaRecord) -> W | None:
    """Return the event in a record, or None if it cannot be read."""
    try:
        return decode(model, record.value, record.headers)
    except Unreadable:
        return None


def _uses(directory: Path, snapshots: list[Departure]) -> _Uses:
    """Read the recorded decisions on these snapshots."""
    measured: dict[str, int] = {}
    for departure in snapshots:
        if isinstance(departure.event, MetricSnapshot):
            measured.setdefault(departure.event.snapshot_id, departure.due_ms)
    uses = _Uses({}, {}, {})
    for record in read(directory, BY_MODEL[Decision].suffix):
        decision = readable(Decision, record)
        if decision is None or decision.snapshot_id not in measured:
            continue
        due, spec = measured[decision.snapshot_id], (decision.job_id, decision.spec_version)
        uses.specs[spec] = min(due, uses.specs.get(spec, due))
        for result in decision.observed.results:
            uses.results[result.result_id] = min(due, uses.results.get(result.result_id, due))
        if decision.keyframe is not None:
            uses.kept[spec] = decision.keyframe.spec
    return uses


def _from_keyframe(spec: JobSpec, uses: _Uses) -> Departure:
    due, made = uses.specs[spec.job_id, spec.version], encode(spec)
    return Departure(due, JOBS, KafkaRecord(0, 0, due, made.key, made.value, tuple(made.headers)), spec)


def _timed(departure: Departure, uses: _Uses, start_ms: int) -> Departure:
    """Return a spec or result with the time it is due; what is older than the first snapshot goes out with that."""
    match departure.event:
        case JobSpec() as spec:
            due = uses.specs.get((spec.job_id, spec.version), departure.due_ms)
        case ActionResult() as result:
            due = uses.results.get(result.result_id, departure.due_ms)
        case _:
            due = departure.due_ms
    return replace(departure, due_ms=max(start_ms, due))


def _order(departure: Departure) -> tuple[int, int, int, int, int]:
    record = departure.record
    return departure.due_ms, RANK[departure.topic], record.timestamp_ms, record.partition, record.offset
