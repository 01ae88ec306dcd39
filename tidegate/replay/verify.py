"""Verifying one job's decisions: each is made again from what was recorded, and its bytes are compared.

Records come in the order of (sequence, snapshots before decisions, topic, partition, offset). The state and the spec
are taken from the first keyframe on trust; from there on both are our own, and a later keyframe is compared like
everything else. What a decision depended on besides (`observed`) is fed back from its own record.

A decision that stands twice (the decider was ended between producing it and keeping its state) begins again from the
states before it; either may be the one that was gone on from, so both are kept until the next decision tells.
What cannot be made again is counted by its reason and never passes for identical.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.engine.decide import ENGINE_VERSION, AlreadyDecided
from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.plan import UnknownPolicy
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.decision import Keyframe, Observed, decision_id
from tidegate.events.envelope import Unreadable, decode, value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.replay.difference import Difference, first_difference, shown

CANDIDATES = 4
"""States kept of a decision that stands several times."""


class Reason(StrEnum):
    """Why a decision could not be made again."""

    BEFORE_FIRST_KEYFRAME = "before the job's first keyframe in the record"
    SNAPSHOT_MISSING = "its snapshot is not in the record"
    STATE_UNKNOWN = "after one that could not be recomputed, up to the next keyframe"
    SPEC_UNKNOWN = "no keyframe shows the version of the spec it names"
    SPEC_REFUSED = "the engine here refuses its spec (a policy that is not installed, an option it does not know)"


@dataclass(slots=True)
class JobTally:
    """What came out for one job. The sum of the first four groups is the number of its decision records."""

    job_id: str
    identical: int = 0
    differing: int = 0
    other_version: int = 0
    """Decisions of another engine version; they say nothing about this one."""
    not_recomputable: dict[str, int] = field(default_factory=dict)
    """Count by name of `Reason`."""
    repeated: int = 0
    """Of all these, records of a snapshot that had a decision already."""
    undecided: int = 0
    """Snapshots without any decision: late ones, and those the decider has yet to come to."""
    began_anew: int = 0
    """How often the decider had lost the job's state, or the job was removed and came again."""
    first: Difference | None = None

    @property
    def decisions(self) -> int:
        """Number of decision records."""
        return self.identical + self.differing + self.other_version + sum(self.not_recomputable.values())


class _Recorded(BaseModel):
    """What is needed of a recorded decision; the rest is only compared, as bytes."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    decision_id: str
    job_id: str
    snapshot_id: str
    sequence: int
    engine_version: str
    spec_version: int
    observed: Observed
    keyframe: Keyframe | None = None


class JobVerifier:
    """Takes one job's records in order; `tally()` says what came out."""

    def __init__(self, job_id: str, engine: Engine) -> None:
        self._engine = engine
        self._tally = JobTally(job_id)
        self._sequence: int | None = None
        self._snapshots: list[bytes] = []
        self._decisions = 0
        """Decisions of the present sequence so far."""
        self._gap: int | None = None
        """A sequence since the last decision that has a snapshot and no decision."""
        self._before: list[JobState] = []
        """States the present sequence may begin from, the likeliest first; none: unknown."""
        self._after: list[JobState] = []
        self._specs: dict[int, JobSpec] = {}
        self._lost = Reason.BEFORE_FIRST_KEYFRAME
        """Why there is no state, while there is none."""

    def snapshot(self, sequence: int, value: bytes) -> None:
        """Take a snapshot record."""
        self._turn_to(sequence)
        self._snapshots.append(value)

    def decision(self, value: bytes, place: str) -> None:
        """Take a decision record and judge it."""
        try:
            recorded = _Recorded.model_validate_json(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"])) or "(whole value)"
            self._differs(None, place, path, shown(first["input"]), f"(unreadable: {first['msg']})")
            self._forget()
            return
        self._turn_to(recorded.sequence)
        self._tally.repeated += int(self._decisions > 0)
        self._decisions += 1
        reason = None
        if recorded.engine_version == ENGINE_VERSION:
            reason = self._verify(recorded, value, place)
            if reason is None:
                self._gap = None
                return
        # It could not be made again; but its ids must still be functions of what it names.
        if forged := _identity(recorded):
            self._differs(recorded, place, *forged)
            return
        if reason is None:
            self._tally.other_version += 1
        else:
            counts = self._tally.not_recomputable
            counts[reason.name] = counts.get(reason.name, 0) + 1
        self._forget()

    def tally(self) -> JobTally:
        """Return what came out; call it after the last record."""
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
        """Nothing is known of the state until the next keyframe."""
        self._before, self._after, self._gap = [], [], None

    def _verify(self, recorded: _Recorded, value: bytes, place: str) -> Reason | None:
        """Make the decision again and compare; return why that is impossible, if it is."""
        frame = recorded.keyframe
        states = self._before
        if frame is not None and (not states or frame.state == _NEW):
            # The first keyframe, the first after a gap, or a job that began anew: taken on trust.
            self._tally.began_anew += int(bool(states) and states != [JobState.new()])
            states = self._before = [from_wire(frame.state)]
            self._specs, self._lost = {recorded.spec_version: frame.spec}, Reason.STATE_UNKNOWN
        if not states:
            return self._lost
        if frame is not None:
            self._specs.setdefault(recorded.spec_version, frame.spec)
        spec = self._specs.get(recorded.spec_version)
        if spec is None:
            return Reason.SPEC_UNKNOWN
        snapshot = self._snapshot()
        if snapshot is None:
            return Reason.SNAPSHOT_MISSING
        try:
            self._compare(recorded, value, place, states, snapshot, spec)
        except (BadOption, UnknownPolicy):
            return Reason.SPEC_REFUSED
        return None

    def _compare(
        self,
        recorded: _Recorded,
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
            made = value_of(decision)
            if made == value:
                self._tally.identical += 1
                self._go_on(after)
                return
            first = first or (after, made)
        assert first is not None  # noqa: S101  (there is at least one state)
        self._differs(recorded, place, *first_difference(value, first[1]))
        frame = recorded.keyframe
        if frame is not None:  # what follows is judged by the recorded state again
            self._specs[recorded.spec_version] = frame.spec
            first = (self._engine.step(from_wire(frame.state), snapshot, frame.spec, recorded.observed)[0], b"")
        self._go_on(first[0])

    def _go_on(self, after: JobState) -> None:
        if after not in self._after:
            self._after = [after, *self._after][:CANDIDATES]

    def _snapshot(self) -> MetricSnapshot | None:
        """Return the snapshot of this sequence; of several the first that can be read, as the decider does."""
        for value in self._snapshots:
            try:
                snapshot = decode(MetricSnapshot, value)
            except Unreadable:
                continue
            if snapshot.job_id == self._tally.job_id and snapshot.sequence == self._sequence:
                return snapshot
        return None

    def _differs(self, recorded: _Recorded | None, place: str, path: str, was: str, made: str) -> None:
        self._tally.differing += 1
        if self._tally.first is None:
            sequence, identity = (recorded.sequence, recorded.decision_id) if recorded else (self._sequence, "?")
            gap = f"the snapshot of sequence {self._gap} before it has no decision" if self._gap is not None else ""
            self._tally.first = Difference(self._tally.job_id, sequence, identity, place, path, was, made, gap)


_NEW = to_wire(JobState.new())


def _identity(recorded: _Recorded) -> tuple[str, str, str] | None:
    """Return (path, recorded, recomputed) of an id that is not the function of its input it must be."""
    wanted = snapshot_id(recorded.job_id, recorded.sequence)
    if recorded.snapshot_id != wanted:
        return "snapshot_id", recorded.snapshot_id, f"{wanted} (of {recorded.job_id}, {recorded.sequence})"
    made = decision_id(recorded.job_id, wanted, recorded.spec_version, recorded.engine_version)
    if recorded.decision_id != made:
        names = f"(of spec version {recorded.spec_version}, engine version {recorded.engine_version})"
        return "decision_id", recorded.decision_id, f"{made} {names}"
    return None
