"""The restart protocol as a pure machine: events in, the next action out, illegal moves raise and change nothing.

A command is carried out in steps, and each step is a result on the results topic, acknowledged *before* the next
action begins. So the newest result of a command says which action was under way, and a successor that knows nothing
else can do that action again: every action is written so that doing it twice is doing it once.

    state      the action it stands for                    its events
    ACCEPTED   FIND what runs; nothing was touched yet     Found · NothingRuns · Refused · Unknown · Outfenced
    STOPPING   STOP it at a batch boundary, or by force    Gone · WouldNotStop · Outfenced
    STOPPED    ANNOUNCE the start, or be done (`stop`)     Announced · Done · Outfenced
    STARTING   SUBMIT the run with the attempt's size      Submitted · NotSubmitted · Refused · Outfenced
    RUNNING    VERIFY by the first committed batch         Committed · Silent

The fence is raised inside STOP and ANNOUNCE, always before the cluster is touched. An attempt that fails (it was
not accepted by the cluster, or committed nothing in time) goes back to STOPPING once, as attempt 2, with the last good
size; a second failure is FAILED. There is no way from anywhere to STARTING that does not pass through STOPPED: that
is the invariant "never two writers on one checkpoint" (I4), and `tests/property/test_restart_machine.py` walks it.

    ACCEPTED ─Found─> STOPPING ─Gone─> STOPPED ─Announced─> STARTING ─Submitted─> RUNNING ─Committed─> VERIFIED
        └─NothingRuns───────────────────^ │ Done                │ NotSubmitted       │ Silent           (ROLLED_BACK in
                        ^                 └──> VERIFIED         v                    v                   attempt 2)
                        └──────── once, attempt 2, last good size ───────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult, Phase


class Action(Enum):
    """What is to be done in a state."""

    ADMIT = "admit"
    FIND = "find"
    STOP = "stop"
    ANNOUNCE = "announce"
    SUBMIT = "submit"
    VERIFY = "verify"
    NOTHING = "nothing"


class RestartEvent(Enum):
    """What can come of an action."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    """It may not be done, or the job runs in an application that is not ours."""
    OUTFENCED = "outfenced"
    FOUND = "found"
    NOTHING_RUNS = "nothing runs"
    UNKNOWN = "unknown"
    """The cluster does not say what runs; nothing was touched."""
    GONE = "gone"
    WOULD_NOT_STOP = "would not stop"
    ANNOUNCED = "announced"
    DONE = "done"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not submitted"
    COMMITTED = "committed"
    SILENT = "silent"
    ORPHANED = "orphaned"
    """The job's spec was removed while the command was under way."""
    BROKEN = "broken"
    """The job's own files, control directory or checkpoint, cannot be used."""


class IllegalMove(RuntimeError):
    """The event cannot happen in this state; the state is as it was."""


@dataclass(frozen=True, slots=True)
class RestartState:
    """How far a command has come. `phase` is None before its first result."""

    kind: CommandKind
    target: int
    """The ordered size; 0 for `stop`."""
    last_good: int | None
    """The size to roll back to; None when no size is known to have worked."""
    phase: Phase | None = None
    attempt: int = 1

    @property
    def parallelism(self) -> int:
        """The size this attempt aims at."""
        return self.target if self.attempt == 1 else (self.last_good or self.target)


ACTIONS: dict[Phase | None, Action] = {
    None: Action.ADMIT,
    Phase.ACCEPTED: Action.FIND,
    Phase.STOPPING: Action.STOP,
    Phase.STOPPED: Action.ANNOUNCE,
    Phase.STARTING: Action.SUBMIT,
    Phase.RUNNING: Action.VERIFY,
}

MOVES: dict[tuple[Phase | None, RestartEvent], Phase] = {
    (None, RestartEvent.ADMITTED): Phase.ACCEPTED,
    (None, RestartEvent.REFUSED): Phase.REJECTED,
    (Phase.ACCEPTED, RestartEvent.OUTFENCED): Phase.REJECTED,
    (Phase.ACCEPTED, RestartEvent.REFUSED): Phase.REJECTED,
    (Phase.ACCEPTED, RestartEvent.FOUND): Phase.STOPPING,
    (Phase.ACCEPTED, RestartEvent.NOTHING_RUNS): Phase.STOPPED,
    (Phase.ACCEPTED, RestartEvent.UNKNOWN): Phase.FAILED,
    (Phase.STOPPING, RestartEvent.GONE): Phase.STOPPED,
    (Phase.STOPPING, RestartEvent.WOULD_NOT_STOP): Phase.FAILED,
    (Phase.STOPPING, RestartEvent.OUTFENCED): Phase.FAILED,
    (Phase.STOPPED, RestartEvent.ANNOUNCED): Phase.STARTING,
    (Phase.STOPPED, RestartEvent.OUTFENCED): Phase.FAILED,
    (Phase.STOPPED, RestartEvent.DONE): Phase.VERIFIED,
    (Phase.STARTING, RestartEvent.SUBMITTED): Phase.RUNNING,
    (Phase.STARTING, RestartEvent.NOT_SUBMITTED): Phase.STOPPING,
    (Phase.STARTING, RestartEvent.REFUSED): Phase.FAILED,
    (Phase.STARTING, RestartEvent.OUTFENCED): Phase.FAILED,
    (Phase.RUNNING, RestartEvent.COMMITTED): Phase.VERIFIED,
    (Phase.RUNNING, RestartEvent.SILENT): Phase.STOPPING,
}

MOVES |= {
    (phase, event): Phase.FAILED
    for phase in ACTIONS
    if phase is not None
    for event in (RestartEvent.ORPHANED, RestartEvent.BROKEN)
}


def begin(command: ScalingCommand, last_good: int | None) -> RestartState:
    """Return the state of a command of which nothing was done."""
    return RestartState(command.kind, command.to_parallelism, last_good)


def resume(command: ScalingCommand, last_good: int | None, results: Iterable[ActionResult]) -> RestartState:
    """Return the state that a command's results, oldest first, tell of."""
    state = begin(command, last_good)
    for result in results:
        state = replace(state, phase=result.phase, attempt=result.attempt)
    return state


def next_action(state: RestartState) -> Action:
    """Return what is to be done now; NOTHING when the command has ended."""
    return ACTIONS.get(state.phase, Action.NOTHING)


def advance(state: RestartState, event: RestartEvent) -> RestartState:
    """Return the state after `event`; raise `IllegalMove` where it cannot happen."""
    phase = MOVES.get((state.phase, event))
    if phase is None:
        raise IllegalMove(f"{event.name} cannot happen in {state.phase}, attempt {state.attempt}")
    if (event is RestartEvent.DONE and state.kind is not CommandKind.STOP) or (
        event is RestartEvent.ANNOUNCED and state.kind is CommandKind.STOP
    ):
        raise IllegalMove(f"{event.name} is not how a {state.kind} goes on from {state.phase}")
    if phase is Phase.VERIFIED and state.attempt > 1:
        phase = Phase.ROLLED_BACK
    if event in (RestartEvent.SILENT, RestartEvent.NOT_SUBMITTED):
        if state.attempt > 1 or state.last_good is None:
            return replace(state, phase=Phase.FAILED)
        return replace(state, phase=phase, attempt=2)
    return replace(state, phase=phase)
