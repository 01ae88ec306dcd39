"""Verifying one job's decisions: the engine makes each decision again from the recording, and the bytes are compared.

Records come in the order of (sequence, snapshots before decisions, topic, partition, offset). State and spec of the
first keyframe are trusted. From there on the engine computes the state, and later keyframes are compared like any other
field. The decision's other inputs (`observed`) come from its own record.

A decision appears twice if the decider died after publishing it and before saving its state. Both start from the same
state, and the decider may have continued from either, so both states are kept until the next decision shows which. A
decision that cannot be recomputed is counted by its reason and never as identical.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.engine.decide import ENGINE_VERSION, AlreadyDecided
from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.plan import UnknownPolicy
from tidegate.engine.state import NEW_STATE, JobState, from_wire
from tidegate.events.decision import Keyframe, Observed, decision_id
from tidegate.events.envelope import Unreadable, decode, value_of
from tidegate.events.invalid import text_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.replay.difference import Difference, first_difference, shown

CANDIDATES = 4
"""Most states kept for a decision that appears several times."""


NO_STATE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading a state that no engine wrote raises, or deciding from it."""


class NotRecomputable(StrEnum):
    """Why a decision cannot be recomputed."""

    BEFORE_FIRST_KEYFRAME = "it comes before the job's first recorded keyframe"
    SNAPSHOT_MISSING = "its snapshot was not recorded"
    STATE_UNKNOWN = "it follows one that is not recomputable, without a keyframe in between"
    SPEC_UNKNOWN = "no keyframe holds its version of the spec"
    SPEC_REFUSED = "this engine rejects its spec (an unknown policy or option)"


@dataclass(slots=True)
class JobTally:
    """The result for one job. The first four groups add up to the number of its decision records."""

    job_id: str
    identical: int = 0
    differing: int = 0
    other_version: int = 0
    """Decisions by another engine version, which say nothing about this one."""
    not_recomputable: Counter[str] = field(default_factory=Counter)
    """Count by the name of a `NotRecomputable`."""
    repeated: int = 0
    """How many of all these are not the first decision on their snapshot."""
    undecided: int = 0
    """Snapshots without a decision: late ones, and those the decider has not reached yet."""
    state_resets: int = 0
    """How often the state started empty: the decider lost it, or the job was removed and added again."""
    first: Difference | None = None

    @property
    def decisions(self) -> int:
        """Number of decision records."""
        return self.identical + self.differing + self.other_version + sum(self.not_recomputable.values())


class _RecordedIds(BaseModel):
    """The fields of a recorded decision that its ids follow from."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    decision_id: str
    job_id: str
    snapshot_id: str
    sequence: int
    engine_version: str
    spec_version: int


class _RecordedDecision(_RecordedIds):
    """The needed fields of a recorded decision; the rest is only compared, as bytes."""

    observed: Observed
    keyframe: Keyframe | None = None


class JobVerifier:
    """Takes one job's records in order; `tally()` returns the result."""

    def __init__(self, job_id: str, engine: Engine) -> None:
        self._engine = engine
        self._tally = JobTally(job_id)
        self._sequence: int | None = None
        self._snapshots: list[bytes] = []
        self._decisions = 0
        """Decisions of the current sequence so far."""
        self._gap: int | None = None
        """A sequence after the last decision that has a snapshot and no decision."""
        self._before: list[JobState] = []
        """States that the current sequence may start from, the likeliest first; empty if unknown."""
        self._after: list[JobState] = []
        self._specs: dict[int, JobSpec] = {}
        self._unknown_because = NotRecomputable.BEFORE_FIRST_KEYFRAME
        """Why no state is known, while none is."""

    def snapshot(self, sequence: int, value: bytes) -> None:
        """Take a snapshot record."""
        self._turn_to(sequence)
        self._snapshots.append(value)

    def decision(self, value: bytes, place: str) -> None:
        """Take a decision record and verify it."""
        try:
            recorded = _read(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"])) or "(whole value)"
            self._differs(None, place, path, shown(first["input"]), f"(unreadable: {text_of(first)})")
            self._forget()
            return
        self._turn_to(recorded.sequence)
        self._tally.repeated += int(self._decisions > 0)
        self._decisions += 1
        reason = None
        if isinstance(recorded, _RecordedDecision) and recorded.engine_version == ENGINE_VERSION:
            reason = self._verify(recorded, value, place)
            if reason is None:
                self._gap = None
                return
        # Even if it cannot be recomputed, its ids must follow from its other fields.
        if forged := _identity(recorded):
            self._differs(recorded, place, *forged)
        elif reason is None:
            self._tally.other_version += 1
        else:
            self._tally.not_recomputable[reason.name] += 1
        self._forget()

    def tally(self) -> JobTally:
        """Return the result; call it after the last record."""
        self._turn_to(None)
        return self._tally

    def _turn_to(self, sequence: int | None) -> None:
        if sequence == self._sequence:
            return
        if self._snapshots and not self._decisions:
            self._tally.undecided += 1
            self._gap = self._sequence
        if self._after:
            self._before, self._after = self._after, []
        self._sequence, self._snapshots, self._decisions = sequence, [], 0

    def _forget(self) -> None:
        """Discard the state; the next keyframe brings a new one."""
        self._before, self._after, self._gap = [], [], None

    def _verify(self, recorded: _RecordedDecision, value: bytes, place: str) -> NotRecomputable | None:
        """Make the decision again and compare; return why if that is impossible."""
        frame = recorded.keyframe
        states = self._before
        if frame is not None and (not states or frame.state == NEW_STATE):
            # Trust the first keyframe, the first one after a gap, and one with an empty state.
            try:
                known = from_wire(frame.state)
            except NO_STATE as error:
                self._refuses(recorded, frame, place, error)
                return None
            self._tally.state_resets += int(bool(states) and states != [JobState.new()])
            states = self._before = [known]
            self._specs, self._unknown_because = {recorded.spec_version: frame.spec}, NotRecomputable.STATE_UNKNOWN
        if not states:
            return self._unknown_because
        if frame is not None:
            self._specs.setdefault(recorded.spec_version, frame.spec)
        spec = self._specs.get(recorded.spec_version)
        if spec is None:
            return NotRecomputable.SPEC_UNKNOWN
        snapshot = self._snapshot()
        if snapshot is None:
            return NotRecomputable.SNAPSHOT_MISSING
        try:
            self._compare(recorded, value, place, states, snapshot, spec)
        except (BadOption, UnknownPolicy):
            return NotRecomputable.SPEC_REFUSED
        return None

    def _compare(
        self,
        recorded: _RecordedDecision,
        value: bytes,
        place: str,
        states: list[JobState],
        snapshot: MetricSnapshot,
        spec: JobSpec,
    ) -> None:
        first: tuple[JobState, bytes] | None = None
        for state in states:
            try:
                after, decision = self._engine.step(state, snapshot, spec, recorded.observed)
            except AlreadyDecided as refusal:
                self._differs(recorded, place, "sequence", str(recorded.sequence), f"(refused: {refusal})")
                return
            except (BadOption, UnknownPolicy):
                raise
            except NO_STATE as error:
                self._refuses(recorded, recorded.keyframe, place, error)
                return
            made = value_of(decision)
            if made == value:
                self._tally.identical += 1
                self._continue_from(after)
                return
            first = first or (after, made)
        assert first is not None  # noqa: S101  (there is at least one state)
        self._differs(recorded, place, *first_difference(value, first[1]))
        frame = recorded.keyframe
        after = first[0]
        if frame is not None:  # continue from the recorded state, unless it is what was altered
            with suppress(AlreadyDecided, BadOption, UnknownPolicy, *NO_STATE):
                after, _ = self._engine.step(from_wire(frame.state), snapshot, frame.spec, recorded.observed)
                self._specs[recorded.spec_version] = frame.spec
        self._continue_from(after)

    def _refuses(self, recorded: _RecordedDecision, frame: Keyframe | None, place: str, error: Exception) -> None:
        """Count a decision that cannot be made from its state as differing, and go on from the next keyframe."""
        state = "" if frame is None else shown(frame.state)
        self._differs(recorded, place, "keyframe.state", state, f"(no state: {error!r:.200})")
        self._forget()

    def _continue_from(self, after: JobState) -> None:
        if after not in self._after:
            self._after = [after, *self._after][:CANDIDATES]

    def _snapshot(self) -> MetricSnapshot | None:
        """Return the first readable snapshot of this sequence, as the decider does."""
        for value in self._snapshots:
            try:
                snapshot = decode(MetricSnapshot, value)
            except Unreadable:
                continue
            if snapshot.job_id == self._tally.job_id and snapshot.sequence == self._sequence:
                return snapshot
        return None

    def _differs(self, recorded: _RecordedIds | None, place: str, path: str, was: str, made: str) -> None:
        self._tally.differing += 1
        if self._tally.first is None:
            sequence, identity = (recorded.sequence, recorded.decision_id) if recorded else (self._sequence, "?")
            gap = f"the snapshot of sequence {self._gap} before it has no decision" if self._gap is not None else ""
            self._tally.first = Difference(self._tally.job_id, sequence, identity, place, path, was, made, gap)


def _read(value: bytes) -> _RecordedIds:
    """Return a recorded decision; only its ids if another engine made it and this version cannot read the rest.

    An older version may have accepted a spec that this one refuses. Raises `ValidationError`.
    """
    try:
        return _RecordedDecision.model_validate_json(value)
    except ValidationError:
        with suppress(ValidationError):
            ids = _RecordedIds.model_validate_json(value)
            if ids.engine_version != ENGINE_VERSION:
                return ids
        raise


def _identity(recorded: _RecordedIds) -> tuple[str, str, str] | None:
    """Return (path, recorded, recomputed) of an id that does not follow from its inputs."""
    wanted = snapshot_id(recorded.job_id, recorded.sequence)
    if recorded.snapshot_id != wanted:
        return "snapshot_id", recorded.snapshot_id, f"{wanted} (of {recorded.job_id}, {recorded.sequence})"
    made = decision_id(recorded.job_id, wanted, recorded.spec_version, recorded.engine_version)
    if recorded.decision_id != made:
        names = f"(of spec version {recorded.spec_version}, engine version {recorded.engine_version})"
        return "decision_id", recorded.decision_id, f"{made} {names}"
    return None
