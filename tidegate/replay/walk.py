"""Going through a recording event by event, with the engine deciding along: what each event says, and what follows.

The events come in the order of `tidegate.replay.schedule`. The engine starts from a job's first keyframe and decides on
each snapshot with what the recorded decision had seen, so every decision is either the recorded one, byte for byte, or
the first difference is told. A decision of another version of the engine is shown as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidegate.engine.decide import ENGINE_VERSION, AlreadyDecided
from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.plan import UnknownPolicy
from tidegate.engine.state import NEW_STATE, JobState, from_wire
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import DECISIONS
from tidegate.fleet.changes import result_in_words
from tidegate.replay.difference import first_difference
from tidegate.replay.files import KafkaRecord, RecordFile, placed
from tidegate.replay.schedule import Departure, readable
from tidegate.replay.verify import NO_STATE
from tidegate.words import figure, size


@dataclass(frozen=True, slots=True)
class WalkedEvent:
    """One event, and what the engine made of it."""

    departure: Departure
    decision: Decision | None = None
    """Made here, or recorded if another version of the engine made it; None for an event that is no snapshot, or on
    which nothing can be decided."""
    state: JobState | None = None
    """After the decision; None if another version of the engine made it."""
    difference: tuple[str, str, str] | None = None
    """(field, recorded, made here) where the decision differs first; None if it is the recorded one."""
    undecided: str = ""
    """Why there is no decision on a snapshot."""

    @property
    def job_id(self) -> str:
        """The job it belongs to; "" if it cannot be read."""
        event = self.departure.event
        return event.job_id if event is not None else (self.departure.record.key or b"").decode("utf-8", "replace")


class Walk:
    """The engine, going through a recording."""

    def __init__(self, directory: Path, engine: Engine, job: str | None = None) -> None:
        """Find the recorded decisions, of all jobs or of one; they are read one by one until `close`.

        Raises `BadRecording`.
        """
        self._engine = engine
        self._places: dict[tuple[str, int], int] = {}
        ours = set[tuple[str, int]]()
        for place, record in placed(directory, DECISIONS.suffix, None if job is None else [job]):
            decision = readable(Decision, record)
            if decision is None:
                continue
            snapshot = decision.job_id, decision.sequence
            if snapshot not in ours:  # upgraded between two decisions on it
                self._places[snapshot] = place
            if decision.engine_version == ENGINE_VERSION:
                ours.add(snapshot)
        self._decisions = RecordFile(directory, DECISIONS.suffix) if self._places else None
        self._states: dict[str, JobState] = {}
        self._specs: dict[tuple[str, int], JobSpec] = {}

    def close(self) -> None:
        """Close the recording."""
        if self._decisions is not None:
            self._decisions.close()

    def take(self, departure: Departure) -> WalkedEvent:
        """Take the next event."""
        match departure.event:
            case JobSpec() as spec:
                self._specs[spec.job_id, spec.version] = spec
            case MetricSnapshot() as snapshot:
                return self._decide(departure, snapshot)
            case _:
                pass
        return WalkedEvent(departure)

    def _decide(self, departure: Departure, snapshot: MetricSnapshot) -> WalkedEvent:
        record = self._decision_on(snapshot)
        recorded = None if record is None else readable(Decision, record)
        if record is None or recorded is None:
            return WalkedEvent(departure, undecided="no decision on it was recorded")
        if recorded.engine_version != ENGINE_VERSION:
            # Results name its commands, not ours. The next keyframe has a state.
            self._states.pop(snapshot.job_id, None)
            return WalkedEvent(departure, recorded)
        frame = recorded.keyframe
        try:
            if frame is not None:
                self._specs[snapshot.job_id, recorded.spec_version] = frame.spec
                if snapshot.job_id not in self._states or frame.state == NEW_STATE:
                    self._states[snapshot.job_id] = from_wire(frame.state)
            state, spec = self._states.get(snapshot.job_id), self._specs.get((snapshot.job_id, recorded.spec_version))
            if state is None or spec is None:
                what = "state" if state is None else f"version {recorded.spec_version} of the spec"
                return WalkedEvent(departure, undecided=f"the {what} is not known before the next keyframe")
            after, made = self._engine.step(state, snapshot, spec, recorded.observed)
        except (AlreadyDecided, BadOption, UnknownPolicy) as error:
            return WalkedEvent(departure, undecided=str(error))
        except NO_STATE as error:
            return WalkedEvent(departure, undecided=f"its state cannot be used: {error!r:.200}")
        self._states[snapshot.job_id] = after
        ours = value_of(made)
        value = record.value or b""
        return WalkedEvent(departure, made, after, None if ours == value else first_difference(value, ours))

    def _decision_on(self, snapshot: MetricSnapshot) -> KafkaRecord | None:
        place = self._places.get((snapshot.job_id, snapshot.sequence))
        return None if place is None or self._decisions is None else self._decisions.at(place)


def heading(walked: WalkedEvent) -> str:
    """Return an event in a line."""
    try:
        at = f"{datetime.fromtimestamp(walked.departure.due_ms / 1000, UTC):%H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # of a forged record
        at = f"timestamp {walked.departure.due_ms}"
    return f"{at}  {walked.job_id}  {_said(walked.departure)}"


def _said(departure: Departure) -> str:
    match departure.event:
        case JobSpec() as spec:
            scaling = spec.scaling
            limits = f"{scaling.min_parallelism} to {size(scaling.max_parallelism)}"
            return f"spec, version {spec.version}: {scaling.policy}, {scaling.mode.value}, {limits}"
        case ActionResult() as result:
            return f"result, {result.phase.value}: {result_in_words(result, size(result.parallelism))}"
        case MetricSnapshot() as snapshot:
            slots, batches = size(snapshot.slots_granted), len(snapshot.batches)
            missing = f", missing: {', '.join(snapshot.missing)}" if snapshot.missing else ""
            ran = f"{snapshot.state.value}, {slots}, micro-batches ended: {batches}{missing}"
            return f"snapshot {snapshot.sequence}: {ran}"
        case None:
            return "the job is removed" if departure.tombstone else f"unreadable record on {departure.topic.suffix}"


def details(walked: WalkedEvent) -> Iterator[str]:
    """Yield what followed from an event: the decision, its reasons, what the engine then knows, and the difference."""
    if walked.undecided:
        yield f"not decided: {walked.undecided}"
    decision, state = walked.decision, walked.state
    if decision is None:
        return
    yield decision.sentence
    for entry in decision.trail:
        yield f"  {entry.before} → {entry.after}  {entry.by}  [{entry.code}]"
    seen = decision.evidence
    yield (
        f"  measured: {figure(seen.arrival_rate, 'records/s')} arrive, capacity "
        f"{figure(seen.true_processing_rate, 'records/s')}, lag {figure(seen.lag_records, 'records')}, "
        f"delay {figure(seen.delay_seconds, 's')}"
    )
    if state is None:
        yield f"  as engine {decision.engine_version} decided; engine {ENGINE_VERSION} cannot make its decisions again"
        return
    yield f"  state: {', '.join(_state(decision, state))}"
    if walked.difference is None:
        yield "  as recorded, byte for byte"
    else:
        path, was, made = walked.difference
        yield f"  DIFFERS from the recorded decision: {path} is {made}, recorded {was}"


def _state(decision: Decision, state: JobState) -> Iterator[str]:
    yield f"decisions so far: {state.decisions}, slices of the window: {len(state.window)}"
    if state.in_flight is not None:
        yield f"the change to {size(state.in_flight.to_parallelism)} under way ({state.in_flight.phase})"
    if state.last_action_at is not None:
        yield f"last change {decision.decided_at.timestamp() - state.last_action_at:.0f} s ago"
    if state.failures:
        yield f"{state.failures} failed starts"
