"""Going through a recording event by event, with the engine deciding along: what each event says, and what follows.

The events come in the order of `tidegate.replay.schedule`. The engine starts from a job's first keyframe and decides on
each snapshot with what the recorded decision had seen, so every decision is either the recorded one, byte for byte, or
the first difference is told. A decision of another version of the engine is shown as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.engine import Engine
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import DECISIONS
from tidegate.fleet.changes import result_in_words
from tidegate.replay.files import RecordFile, placed
from tidegate.replay.recomputer import CannotRecompute, Recomputer
from tidegate.replay.schedule import Departure, readable
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
        """By job and sequence, the first decision on that snapshot by this engine, or by another one."""
        self._repeats: dict[tuple[str, int], list[int]] = {}
        """Further ones by this engine: either may be what the decider went on from."""
        ours = set[tuple[str, int]]()
        for place, record in placed(directory, DECISIONS.suffix, None if job is None else [job]):
            decision = readable(Decision, record)
            if decision is None:
                continue
            snapshot = decision.job_id, decision.sequence
            if snapshot not in ours:  # upgraded between two decisions on it
                self._places[snapshot] = place
            elif decision.engine_version == ENGINE_VERSION:
                self._repeats.setdefault(snapshot, []).append(place)
            if decision.engine_version == ENGINE_VERSION:
                ours.add(snapshot)
        self._decisions = RecordFile(directory, DECISIONS.suffix) if self._places else None
        self._recomputers: dict[str, Recomputer] = {}

    def close(self) -> None:
        """Close the recording."""
        if self._decisions is not None:
            self._decisions.close()

    def take(self, departure: Departure) -> WalkedEvent:
        """Take the next event."""
        event = departure.event
        return self._decide(departure, event) if isinstance(event, MetricSnapshot) else WalkedEvent(departure)

    def _decide(self, departure: Departure, snapshot: MetricSnapshot) -> WalkedEvent:
        job = snapshot.job_id, snapshot.sequence
        found = self._recorded([self._places[job], *self._repeats.get(job, ())] if job in self._places else [])
        if not found:
            return WalkedEvent(departure, undecided="no decision on it was recorded")
        recomputer = self._recomputers.setdefault(snapshot.job_id, Recomputer(self._engine))
        if found[0][0].engine_version != ENGINE_VERSION:
            # Results name its commands, not ours. The next keyframe has a state.
            recomputer.forget()
            return WalkedEvent(departure, found[0][0])
        try:
            made, *_ = [recomputer.recompute(recorded, value, snapshot) for recorded, value in found]
        except CannotRecompute as error:
            return WalkedEvent(departure, undecided=str(error))
        return WalkedEvent(departure, *made)

    def _recorded(self, places: Sequence[int]) -> list[tuple[Decision, bytes]]:
        """Return the decisions at these places that can be read, with their bytes."""
        records = [] if self._decisions is None else map(self._decisions.at, places)
        read = ((readable(Decision, record), record.value or b"") for record in records)
        return [(decision, value) for decision, value in read if decision is not None]


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
