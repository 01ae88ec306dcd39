"""What a recording publishes again, and in which order.

Timestamps alone do not give the order. The decider reads specs and results from topics of their own, so it may take in
a spec written just before a snapshot only after that snapshot. The recorded decisions tell: each names the version of
its spec and carries the results that had come in since the one before. A spec or result therefore goes out right before
the first snapshot decided with it. One that no decision used goes out at its own time, but no later than what follows
it under its key.

The topic of specs is compacted: Kafka may have dropped older versions before the recording was made. A decision with a
keyframe holds the whole spec, so those versions are published from there.

All records have to be seen before the first one goes out, but a recording may be larger than the memory. So only their
places in the files are kept, and each record is read again when its turn comes. What they say is read before only where
the order depends on it: with specs and results, or for one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode, encode
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL, JOBS, RESULTS, SNAPSHOTS, Topic
from tidegate.events.wire import Wire
from tidegate.replay.files import KafkaRecord, RecordFile, placed, read

W = TypeVar("W", bound=Wire)
Republished = MetricSnapshot | ActionResult | JobSpec
_TOPICS = (JOBS, RESULTS, SNAPSHOTS)
"""Order of records that are due at the same time."""
_MODELS: dict[Topic, type[Republished]] = {JOBS: JobSpec, RESULTS: ActionResult, SNAPSHOTS: MetricSnapshot}


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


class _Turn(NamedTuple):
    """When a record is due, and where it is. Turns are ordered."""

    due_ms: int
    rank: int
    partition: int
    offset: int
    place: int
    """In the topic's file; below 0, counted from the end of the specs that are in no file."""
    timestamp_ms: int


class Schedule:
    """The records to publish, in their order. Each is read when its turn comes."""

    def __init__(self, directory: Path, turns: Iterable[_Turn], made: Sequence[Departure]) -> None:
        self._directory = directory
        self._turns = sorted(turns)
        self._made = made

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Departure]:
        with ExitStack() as stack:
            files: dict[Topic, RecordFile] = {}
            for turn in self._turns:
                if turn.place < 0:
                    yield self._made[turn.place]
                    continue
                topic = _TOPICS[turn.rank]
                if topic not in files:
                    files[topic] = stack.enter_context(closing(RecordFile(self._directory, topic.suffix)))
                record = files[topic].at(turn.place)
                yield Departure(turn.due_ms, topic, record, readable(_MODELS[topic], record))

    @property
    def start_ms(self) -> int:
        """When the first record is due."""
        return self._turns[0].due_ms

    def oldest(self) -> dict[Topic, int]:
        """Return the timestamp of each topic's oldest record, in milliseconds."""
        found: dict[Topic, int] = {}
        for turn in self._turns:
            topic = _TOPICS[turn.rank]
            found[topic] = min(turn.timestamp_ms, found.get(topic, turn.timestamp_ms))
        return found


def schedule(directory: Path, *, job: str | None = None, whole: bool = False) -> Schedule:
    """Return the snapshots of a recording, with `whole` also its specs and results, in the order to publish them.

    `job` keeps the records of one job.
    """
    if job is None and not whole:  # then the order does not depend on what the snapshots say
        every = placed(directory, SNAPSHOTS.suffix)
        return Schedule(directory, (_turn_of(record, SNAPSHOTS, record.timestamp_ms, at) for at, record in every), ())
    turns: list[_Turn] = []
    measured: dict[str, int] = {}
    for place, departure in _departures(directory, MetricSnapshot, job):
        turns.append(_turn(departure, place))
        if isinstance(departure.event, MetricSnapshot):
            measured.setdefault(departure.event.snapshot_id, departure.due_ms)
    if not whole:
        return Schedule(directory, turns, ())
    start = min((turn.due_ms for turn in turns), default=0)
    uses = _uses(directory, measured, job)
    specs: list[tuple[bytes, _Turn]] = []
    for place, departure in _departures(directory, JobSpec, job):
        specs.append((departure.record.key or b"", _turn(_timed(departure, uses, start), place)))
        if isinstance(departure.event, JobSpec):
            version = departure.event.job_id, departure.event.version
            uses.kept.pop(version, None)
            uses.specs.pop(version, None)  # of a job that was added again, another spec may have the same one
    results = (
        (departure.record.key or b"", _turn(_timed(departure, uses, start), place))
        for place, departure in _departures(directory, ActionResult, job)
    )
    turns += [*_in_order(specs), *_in_order(results)]
    made = [_timed(_from_keyframe(spec, uses), uses, start) for spec in uses.kept.values()]
    turns += [_turn(departure, number - len(made)) for number, departure in enumerate(made)]
    return Schedule(directory, turns, made)


def _departures(directory: Path, model: type[Republished], job: str | None) -> Iterator[tuple[int, Departure]]:
    """Yield the records of a topic, each after its place in the topic's file."""
    topic = BY_MODEL[model]
    for place, record in placed(directory, topic.suffix, None if job is None else [job]):
        event = readable(model, record)
        if job is None or (event.job_id == job if event else topic is JOBS and record.key == job.encode()):
            yield place, Departure(record.timestamp_ms, topic, record, event)


def readable(model: type[W], record: KafkaRecord) -> W | None:
    """Return the event in a record, or None if it cannot be read."""
    try:
        return decode(model, record.value, record.headers)
    except Unreadable:
        return None


def _uses(directory: Path, measured: Mapping[str, int], job: str | None) -> _Uses:
    """Read the recorded decisions on these snapshots: when each is due, by its id."""
    uses = _Uses({}, {}, {})
    for record in read(directory, BY_MODEL[Decision].suffix, None if job is None else [job]):
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


def _turn(departure: Departure, place: int) -> _Turn:
    return _turn_of(departure.record, departure.topic, departure.due_ms, place)


def _turn_of(record: KafkaRecord, topic: Topic, due_ms: int, place: int) -> _Turn:
    return _Turn(due_ms, _TOPICS.index(topic), record.partition, record.offset, place, record.timestamp_ms)


def _in_order(turns: Iterable[tuple[bytes, _Turn]]) -> Iterator[_Turn]:
    """Yield the turns of a topic, given with their keys: none is due after one that follows it under its key.

    Who writes a spec or a result, or removes a job, has a clock of their own.
    """
    following: dict[tuple[int, bytes], int] = {}
    for key, turn in sorted(turns, key=lambda each: each[1].offset, reverse=True):
        due = min(turn.due_ms, following.get((turn.partition, key), turn.due_ms))
        following[turn.partition, key] = due
        yield turn._replace(due_ms=due)
