"""Making one job's recorded decisions again, each from the state that the one before it has left. Pure.

State and spec of the first keyframe are trusted, and so are those of the first one after decisions that could not be
made again, and those of a keyframe with an empty state. From there on the engine computes the state, and later
keyframes are compared like any other field. The decision's other inputs (`observed`) come from its own record.

A decision appears twice if the decider died after publishing it and before saving its state. Both start from the same
state, and the decider may have continued from either, so both states are kept until a later decision or keyframe shows
which.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple, Protocol

from tidegate.engine.decide import AlreadyDecided
from tidegate.engine.engine import Engine
from tidegate.engine.options import BadOption
from tidegate.engine.plan import UnknownPolicy
from tidegate.engine.state import NEW_STATE, JobState, from_wire
from tidegate.events.decision import Decision, Keyframe, Observed
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.replay.difference import first_difference, shown

CANDIDATES = 4
"""Most states kept for a decision that appears several times."""
_NO_STATE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading a state that no engine wrote raises, or deciding from it."""


class NotRecomputable(StrEnum):
    """Why a decision cannot be recomputed."""

    BEFORE_FIRST_KEYFRAME = "it comes before the job's first recorded keyframe"
    SNAPSHOT_MISSING = "its snapshot was not recorded"
    STATE_UNKNOWN = "it follows one that is not recomputable, without a keyframe in between"
    SPEC_UNKNOWN = "no keyframe holds its version of the spec"
    SPEC_REFUSED = "this engine rejects its spec (an unknown policy or option)"


class CannotRecompute(Exception):
    """A decision cannot be made again, which is no difference."""

    def __init__(self, reason: NotRecomputable, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


class Recorded(Protocol):
    """What is needed of a recorded decision."""

    sequence: int
    spec_version: int
    observed: Observed
    keyframe: Keyframe | None


class Recomputed(NamedTuple):
    """A decision made again."""

    decision: Decision | None
    """None if the engine cannot decide from its state."""
    after: JobState | None
    """The state after it."""
    difference: tuple[str, str, str] | None
    """(field, recorded, made here) where it differs first; None if it is the recorded one, byte for byte."""
    refusal: str = ""
    """Why the engine cannot decide."""


class Recomputer:
    """Makes the decisions of one job again, in their order."""

    def __init__(self, engine: Engine) -> None:
        self.resets = 0
        """How often the state started empty."""
        self._engine = engine
        self._sequence: int | None = None
        self._before: list[JobState] = []
        """States that the current sequence may start from, the likeliest first; empty if unknown."""
        self._after: list[JobState] = []
        self._specs: dict[int, JobSpec] = {}
        self._unknown_because = NotRecomputable.BEFORE_FIRST_KEYFRAME
        """Why no state is known, while none is."""

    def forget(self) -> None:
        """Discard the state; the next keyframe brings a new one."""
        self._before, self._after = [], []

    def recompute(self, recorded: Recorded, value: bytes, snapshot: MetricSnapshot | None) -> Recomputed:
        """Make a decision of this engine again, and compare it with its bytes.

        Raises `CannotRecompute`, and then forgets the state.
        """
        if recorded.sequence != self._sequence:
            self._sequence = recorded.sequence
            if self._after:
                self._before, self._after = self._after, []
        try:
            return self._recompute(recorded, value, snapshot)
        except CannotRecompute:
            self.forget()
            raise

    def _recompute(self, recorded: Recorded, value: bytes, snapshot: MetricSnapshot | None) -> Recomputed:
        frame = recorded.keyframe
        if frame is not None and (not self._before or frame.state == NEW_STATE):
            try:
                known = from_wire(frame.state)
            except _NO_STATE as error:
                return self._unusable(frame, error)
            self.resets += int(bool(self._before) and self._before != [JobState.new()])
            self._before, self._specs = [known], {recorded.spec_version: frame.spec}
            self._unknown_because = NotRecomputable.STATE_UNKNOWN
        if not self._before:
            raise CannotRecompute(self._unknown_because)
        if frame is not None:
            self._specs.setdefault(recorded.spec_version, frame.spec)
        spec = self._specs.get(recorded.spec_version)
        if spec is None:
            raise CannotRecompute(NotRecomputable.SPEC_UNKNOWN)
        if snapshot is None:
            raise CannotRecompute(NotRecomputable.SNAPSHOT_MISSING)
        try:
            return self._compared(recorded, value, snapshot, spec)
        except (BadOption, UnknownPolicy) as error:
            raise CannotRecompute(NotRecomputable.SPEC_REFUSED, str(error)) from None

    def _compared(self, recorded: Recorded, value: bytes, snapshot: MetricSnapshot, spec: JobSpec) -> Recomputed:
        frame, made = recorded.keyframe, []
        for state in self._before:
            try:
                made.append(self._engine.step(state, snapshot, spec, recorded.observed))
            except AlreadyDecided as error:
                return _refused("sequence", str(recorded.sequence), f"refused: {error}")
            except (BadOption, UnknownPolicy):
                raise
            except _NO_STATE as error:
                return self._unusable(frame, error)
        values = [value_of(decision) for _, decision in made]
        if same := [each for each, ours in zip(made, values, strict=True) if ours == value]:
            for after, _ in reversed(same):
                self._continue_from(after)
            after, decision = same[0]
            return Recomputed(decision, after, None)
        after, decision = made[0]
        if frame is None:
            self._continue_from(after)
        else:  # continue from the recorded state, unless it is what was altered
            self._continue_from(self._by_keyframe(recorded, frame, snapshot) or after)
        return Recomputed(decision, after, first_difference(value, values[0]))

    def _by_keyframe(self, recorded: Recorded, frame: Keyframe, snapshot: MetricSnapshot) -> JobState | None:
        """Return the state after a decision from its recorded state and spec; None if the engine cannot use them."""
        with suppress(AlreadyDecided, BadOption, UnknownPolicy, *_NO_STATE):
            after, _ = self._engine.step(from_wire(frame.state), snapshot, frame.spec, recorded.observed)
            self._specs[recorded.spec_version] = frame.spec
            return after
        return None

    def _unusable(self, frame: Keyframe | None, error: Exception) -> Recomputed:
        """Return that the engine cannot decide from the state, and go on from the next keyframe."""
        self.forget()
        state = "" if frame is None else shown(frame.state)
        return _refused("keyframe.state", state, f"its state cannot be used: {error!r:.200}")

    def _continue_from(self, after: JobState) -> None:
        if after not in self._after:
            self._after = [after, *self._after][:CANDIDATES]


def _refused(path: str, recorded: str, why: str) -> Recomputed:
    return Recomputed(None, None, (path, recorded, f"({why})"), why)
