"""The restart protocol as a pure state machine: an event goes in, the next action comes out.

A command is carried out in steps. Each step ends with a result on the results topic, and the broker has acknowledged
that result *before* the next action starts. So the newest result of a command tells which action was under way, and a
successor that knows nothing else can repeat that action: doing any action twice has the same effect as doing it once.

    phase      its action                                      the events that can end it
    ACCEPTED   FIND the drivers that run; change nothing       Found · NothingRuns · Refused · Unknown · Outfenced
    STOPPING   STOP them at a batch boundary, or by force      Gone · WouldNotStop · Outfenced
    STOPPED    ANNOUNCE the new run; a `stop` is done here     Announced · Done · Outfenced
    STARTING   SUBMIT the new run with the attempt's size      Submitted · NotSubmitted · Refused · Outfenced
    RUNNING    VERIFY that it commits its first batch          Committed · Silent

    ACCEPTED ─Found─> STOPPING ─Gone─> STOPPED ─Announced─> STARTING ─Submitted─> RUNNING ─Committed─> VERIFIED
        │                 ^              ^ │ Done               │ NotSubmitted       │ Silent
        └───NothingRuns───┼──────────────┘ └──> VERIFIED        v                    v
                          └── attempt 2, last good size ────────┴────────────────────┘

STOP and ANNOUNCE take the job's fence before anything changes on the cluster. An attempt fails when the cluster does
not take the new run, or when the run commits no batch in time. The command then goes back to STOPPING once, as
attempt 2, with the last size that worked; if that one commits, the command ends as ROLLED_BACK. A second failure, or a
first one with no earlier size to go back to, ends it as FAILED. From any phase, Orphaned and Broken end it as FAILED.

The only way to STARTING leads through STOPPED. That is the invariant "never two writers on one checkpoint" (I4);
`tests/property/test_restart_machine.py` checks it for every order of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult, Phase


class Action(Enum):
    """What the actuator does in a phase."""

    ADMIT = "admit"
    FIND = "find"
    STOP = "stop"
    ANNOUNCE = "announce"
    SUBMIT = "submit"
    VERIFY = "verify"
    NOTHING = "nothing"


class RestartEvent(Enum):
    """How an action can end."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    """The command is not allowed, or a driver that Tidegate did not start runs the job."""
    OUTFENCED = "outfenced"
    FOUND = "found"
    NOTHING_RUNS = "nothing runs"
    UNKNOWN = "unknown"
    """The cluster does not say what runs; nothing was changed."""
    GONE = "gone"
    WOULD_NOT_STOP = "would not stop"
    ANNOUNCED = "announced"
    DONE = "done"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not submitted"
    COMMITTED = "committed"
    SILENT = "silent"
    ORPHANED = "orphaned"
    """The job's spec was removed while the command was being carried out."""
    BROKEN = "broken"
    """The job's control directory or checkpoint cannot be used."""


class IllegalMove(RuntimeError):
    """The event cannot happen in this state; the state has not changed."""


@dataclass(frozen=True, slots=True)
class RestartState:
    """How far a command has come. `phase` is None before its first result."""

    kind: CommandKind
    target: int
    """The size the command asks for; 0 for `stop`."""
    last_good: int | None
    """The size to roll back to; None when no size is known to have worked."""
    phase: Phase | None = None
    attempt: int = 1

    @property
    def parallelism(self) -> int:
        """The size of this attempt."""
        return self.target if self.attempt == 1 else (self.last_good or self.target)


ACTIONS: dict[Phase | None, Action] = {
    None: Action.ADMIT,
    Phase.ACCEPTED: Action.FIND,
    Phase.STOPPING: Action.STOP,
    Phase.STOPPED: Action.ANNOUNCE,
    Phase.STARTING: Action.SUBMIT,
    Phase.RUNNING: Action.VERIFY,
}

_ANYWHERE = {RestartEvent.ORPHANED: Phase.FAILED, RestartEvent.BROKEN: Phase.FAILED}

MOVES: dict[Phase | None, dict[RestartEvent, Phase]] = {
    None: {
        RestartEvent.ADMITTED: Phase.ACCEPTED,
        RestartEvent.REFUSED: Phase.REJECTED,
    },
    Phase.ACCEPTED: {
        RestartEvent.FOUND: Phase.STOPPING,
        RestartEvent.NOTHING_RUNS: Phase.STOPPED,
        RestartEvent.REFUSED: Phase.REJECTED,
        RestartEvent.OUTFENCED: Phase.REJECTED,
        RestartEvent.UNKNOWN: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.STOPPING: {
        RestartEvent.GONE: Phase.STOPPED,
        RestartEvent.WOULD_NOT_STOP: Phase.FAILED,
        RestartEvent.OUTFENCED: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.STOPPED: {
        RestartEvent.ANNOUNCED: Phase.STARTING,
        RestartEvent.DONE: Phase.VERIFIED,
        RestartEvent.OUTFENCED: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.STARTING: {
        RestartEvent.SUBMITTED: Phase.RUNNING,
        RestartEvent.NOT_SUBMITTED: Phase.STOPPING,
        RestartEvent.REFUSED: Phase.FAILED,
        RestartEvent.OUTFENCED: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.RUNNING: {
        RestartEvent.COMMITTED: Phase.VERIFIED,
        RestartEvent.SILENT: Phase.STOPPING,
        **_ANYWHERE,
    },
}

ENDS_ATTEMPT = frozenset({RestartEvent.NOT_SUBMITTED, RestartEvent.SILENT})
"""Events with which an attempt fails: the next one uses the last good size, if there is one and it was not tried."""

NOT_FOR: dict[RestartEvent, frozenset[CommandKind]] = {
    RestartEvent.ANNOUNCED: frozenset({CommandKind.STOP}),
    RestartEvent.DONE: frozenset(CommandKind) - {CommandKind.STOP},
}
"""Events that cannot happen to some kinds of command: a `stop` starts nothing, and only a `stop` ends at STOPPED."""


def resume(command: ScalingCommand, last_good: int | None, results: Iterable[ActionResult] = ()) -> RestartState:
    """Return the state that a command's results, oldest first, describe."""
    state = RestartState(command.kind, command.to_parallelism, last_good)
    for result in results:
        state = replace(state, phase=result.phase, attempt=result.attempt)
    return state


def next_action(state: RestartState) -> Action:
    """Return what to do now; NOTHING when the command has ended."""
    return ACTIONS.get(state.phase, Action.NOTHING)


def advance(state: RestartState, event: RestartEvent) -> RestartState:
    """Return the state after `event`; raise `IllegalMove` if it cannot happen."""
    phase = MOVES.get(state.phase, {}).get(event)
    if phase is None or state.kind in NOT_FOR.get(event, ()):
        raise IllegalMove(f"{event.name} cannot happen to a {state.kind} in {state.phase}, attempt {state.attempt}")
    if event in ENDS_ATTEMPT:
        if state.attempt > 1 or state.last_good is None:
            return replace(state, phase=Phase.FAILED)
        return replace(state, phase=phase, attempt=2)
    if phase is Phase.VERIFIED and state.attempt > 1:
        phase = Phase.ROLLED_BACK
    return replace(state, phase=phase)
