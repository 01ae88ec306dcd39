"""Verifying one job's decisions: the engine makes each decision again from the recording, and the bytes are compared.

Records come in the order of (sequence, snapshots before decisions, topic, partition, offset). `recomputer.py` says
how a decision is made again. One that cannot be recomputed is counted by its reason and never as identical.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.engine import Engine
from tidegate.events.decision import Keyframe, Observed, decision_id
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.invalid import text_of
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.replay.difference import Difference, shown
from tidegate.replay.recomputer import CannotRecompute, NotRecomputable, Recomputer


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
        self._recomputer = Recomputer(engine)
        self._tally = JobTally(job_id)
        self._sequence: int | None = None
        self._snapshots: list[bytes] = []
        self._decisions = 0
        """Decisions of the current sequence so far."""
        self._by_other = False
        """Whether the newest of them is by another engine version, so that its state is not known."""
        self._gap: int | None = None
        """A sequence after the last decision that has a snapshot and no decision."""

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
            self._recomputer.forget()
            self._gap = None
            return
        self._turn_to(recorded.sequence)
        self._tally.repeated += int(self._decisions > 0)
        self._decisions += 1
        if isinstance(recorded, _RecordedDecision) and recorded.engine_version == ENGINE_VERSION:
            self._by_other = False  # one before it had died: whoever knew its state would not decide again
            self._verify(recorded, value, place)
        else:
            self._by_other = True
            self._unverified(recorded, place, None)
        self._gap = None

    def tally(self) -> JobTally:
        """Return the result; call it after the last record."""
        self._turn_to(None)
        self._tally.state_resets = self._recomputer.resets
        return self._tally

    def _turn_to(self, sequence: int | None) -> None:
        if sequence == self._sequence:
            return
        if self._snapshots and not self._decisions:
            self._tally.undecided += 1
            self._gap = self._sequence
        if self._by_other:
            self._recomputer.forget()
        self._sequence, self._snapshots, self._decisions, self._by_other = sequence, [], 0, False

    def _verify(self, recorded: _RecordedDecision, value: bytes, place: str) -> None:
        """Make the decision again and compare."""
        try:
            made = self._recomputer.recompute(recorded, value, self._snapshot())
        except CannotRecompute as error:
            self._unverified(recorded, place, error.reason)
            return
        if made.difference is None:
            self._tally.identical += 1
        else:
            self._differs(recorded, place, *made.difference)

    def _unverified(self, recorded: _RecordedIds, place: str, reason: NotRecomputable | None) -> None:
        """Count a decision that cannot be recomputed, or is of another engine: its ids must follow all the same."""
        if forged := _identity(recorded):
            self._differs(recorded, place, *forged)
        elif reason is None:
            self._tally.other_version += 1
        else:
            self._tally.not_recomputable[reason.name] += 1

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
