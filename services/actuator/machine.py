"""The protocol of a command as a pure state machine: an event goes in, the next action comes out.

A command is carried out in steps. Each step ends with a result on the results topic, and the broker has acknowledged
that result *before* the next action starts. So the newest result of a command tells which action was under way, and a
successor that knows nothing else can repeat that action: doing any action twice has the same effect as doing it once.

    phase      its action                                       the events that can end it
    ACCEPTED   FIND the drivers that run, and the way to go     Resizable · Replaceable · Found · NothingRuns · …
    RESIZING   RESIZE: order executors of the running driver    Resized · NotResized · FallsBack · CannotGoOn
    WARMING    WARM up a second driver, which starts no query   Warm · NotWarm · FallsBack
    SWITCHING  SWITCH: pause the first, let the second start    Switched · NotSwitched · CannotGoOn
    STOPPING   STOP every driver, at a boundary or by force     Gone · GoneAfterCommit · WouldNotStop
    STOPPED    ANNOUNCE the new run; a `stop` is done here      Announced · Done
    STARTING   SUBMIT the new run with the attempt's size       Submitted · NotSubmitted · Refused
    RUNNING    VERIFY that it commits its first batch           Committed · Working · Silent
    RETIRING   RETIRE the first driver of a handover            Gone · WouldNotStop
    RESUMING   RESUME the first driver's queries                Resumed · NotResumed

    in place   ACCEPTED ─> RESIZING ─Resized─> VERIFIED
    handover   ACCEPTED ─> WARMING ─> SWITCHING ─> RUNNING ─Committed─> RETIRING ─> VERIFIED
    restart    ACCEPTED ─> STOPPING ─> STOPPED ─> STARTING ─> RUNNING ─Committed─> VERIFIED

An attempt fails when the new size does not work: executors do not come or die, the cluster does not take the new run,
or the run does not commit. Then the command goes back once, as attempt 2, to the last size that worked:

    in place   RESIZING, to the last good size
    handover   RESUMING: the second driver is ended, and the first one goes on; if it cannot, STOPPING. That is so
               too if the job's files break in SWITCHING, because the first driver may have paused
    restart    STOPPING, and a start with the last good size

If that works, the command ends as ROLLED_BACK. If the rollback's stop finds that the new run has committed after all,
the ordered size is good, and attempt 3 starts it again. Where a way turns out to be impossible before anything has
changed for the worse, the command *falls back* to a restart with the same attempt.

A `start` ends as soon as its first batch is at work: nothing else can be ordered while it is under way, and a job that
starts with a large backlog must be able to grow before its first batch has ended. If the run dies later, the decider
orders another start. A rescale waits for a commit: it has a size to go back to.

STOP, ANNOUNCE and SWITCH take the job's fence before anything changes on the cluster. The only ways to a new writer
lead through STOPPED, or through a SWITCHING in which the first driver has confirmed that its queries have ended. That
is the invariant "never two writers on one checkpoint" (I4); `tests/property/test_command_machine.py` checks it for
every order of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way


class Action(Enum):
    """What the actuator does in a phase."""

    ADMIT = "admit"
    FIND = "find"
    RESIZE = "resize"
    WARM = "warm"
    SWITCH = "switch"
    STOP = "stop"
    ANNOUNCE = "announce"
    SUBMIT = "submit"
    VERIFY = "verify"
    RETIRE = "retire"
    RESUME = "resume"
    NOTHING = "nothing"


class ActionEvent(Enum):
    """How an action can end."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    """The command is not allowed, or a driver that Tidegate did not start runs the job."""
    OUTFENCED = "outfenced"
    RESIZABLE = "resizable"
    """A driver runs whose executors can be changed."""
    REPLACEABLE = "replaceable"
    """A driver runs that can hand over to a second one."""
    FOUND = "found"
    """Drivers run that must be stopped first."""
    NOTHING_RUNS = "nothing runs"
    UNKNOWN = "unknown"
    """The cluster does not say what runs; nothing was changed."""
    RESIZED = "resized"
    NOT_RESIZED = "not resized"
    WARM = "warm"
    NOT_WARM = "not warm"
    """The second driver failed and is gone; the first one was not touched."""
    SWITCHED = "switched"
    NOT_SWITCHED = "not switched"
    """The first driver may have paused its queries; it must resume them."""
    FALLS_BACK = "falls back"
    """The way cannot be gone; the job must be restarted instead."""
    CANNOT_GO_ON = "cannot go on"
    """The way cannot be gone, and the spec does not allow a restart, or nobody can tell what runs."""
    GONE = "gone"
    GONE_AFTER_COMMIT = "gone after commit"
    """The driver that seemed to fail has committed a batch before it ended."""
    WOULD_NOT_STOP = "would not stop"
    ANNOUNCED = "announced"
    DONE = "done"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not submitted"
    COMMITTED = "committed"
    WORKING = "working"
    """Tasks of the first batch of a start have finished; its commit is still to come."""
    SILENT = "silent"
    RESUMED = "resumed"
    NOT_RESUMED = "not resumed"
    ORPHANED = "orphaned"
    """The job's spec was removed while the command was being carried out."""
    BROKEN = "broken"
    """The job's control directory or checkpoint cannot be used."""


class IllegalMove(RuntimeError):
    """The event cannot happen in this state; the state has not changed."""


@dataclass(frozen=True, slots=True)
class CommandState:
    """How far a command has come. `phase` is None before its first result."""

    kind: CommandKind
    target: int
    """The size the command asks for; 0 for `stop`."""
    last_good: int | None
    """The size to roll back to; None when no size is known to have worked."""
    phase: Phase | None = None
    attempt: int = 1
    """1: the ordered size; 2: back to the last good size; 3: the ordered size again, which has proved itself."""
    way: Way | None = None
    """How the size is changed; None until it is known what runs."""

    @property
    def parallelism(self) -> int:
        """The size of this attempt."""
        return (self.last_good or self.target) if self.attempt == 2 else self.target


ACTIONS: dict[Phase | None, Action] = {
    None: Action.ADMIT,
    Phase.ACCEPTED: Action.FIND,
    Phase.RESIZING: Action.RESIZE,
    Phase.WARMING: Action.WARM,
    Phase.SWITCHING: Action.SWITCH,
    Phase.STOPPING: Action.STOP,
    Phase.STOPPED: Action.ANNOUNCE,
    Phase.STARTING: Action.SUBMIT,
    Phase.RUNNING: Action.VERIFY,
    Phase.RETIRING: Action.RETIRE,
    Phase.RESUMING: Action.RESUME,
}

_ANYWHERE = {
    ActionEvent.OUTFENCED: Phase.FAILED,
    ActionEvent.ORPHANED: Phase.FAILED,
    ActionEvent.BROKEN: Phase.FAILED,
}

MOVES: dict[Phase | None, dict[ActionEvent, Phase]] = {
    None: {
        ActionEvent.ADMITTED: Phase.ACCEPTED,
        ActionEvent.REFUSED: Phase.REJECTED,
    },
    Phase.ACCEPTED: {
        ActionEvent.RESIZABLE: Phase.RESIZING,
        ActionEvent.REPLACEABLE: Phase.WARMING,
        ActionEvent.FOUND: Phase.STOPPING,
        ActionEvent.NOTHING_RUNS: Phase.STOPPED,
        ActionEvent.REFUSED: Phase.REJECTED,
        ActionEvent.UNKNOWN: Phase.FAILED,
        **_ANYWHERE,
        ActionEvent.OUTFENCED: Phase.REJECTED,
    },
    Phase.RESIZING: {
        ActionEvent.RESIZED: Phase.VERIFIED,
        ActionEvent.NOT_RESIZED: Phase.RESIZING,
        ActionEvent.FALLS_BACK: Phase.STOPPING,
        ActionEvent.CANNOT_GO_ON: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.WARMING: {
        ActionEvent.WARM: Phase.SWITCHING,
        ActionEvent.NOT_WARM: Phase.ROLLED_BACK,
        ActionEvent.FALLS_BACK: Phase.STOPPING,
        ActionEvent.CANNOT_GO_ON: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.SWITCHING: {
        ActionEvent.SWITCHED: Phase.RUNNING,
        ActionEvent.NOT_SWITCHED: Phase.RESUMING,
        ActionEvent.CANNOT_GO_ON: Phase.FAILED,
        **_ANYWHERE,
        ActionEvent.BROKEN: Phase.RESUMING,
    },
    Phase.STOPPING: {
        ActionEvent.GONE: Phase.STOPPED,
        ActionEvent.GONE_AFTER_COMMIT: Phase.STOPPED,
        ActionEvent.WOULD_NOT_STOP: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.STOPPED: {
        ActionEvent.ANNOUNCED: Phase.STARTING,
        ActionEvent.DONE: Phase.VERIFIED,
        **_ANYWHERE,
    },
    Phase.STARTING: {
        ActionEvent.SUBMITTED: Phase.RUNNING,
        ActionEvent.NOT_SUBMITTED: Phase.STOPPING,
        ActionEvent.REFUSED: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.RUNNING: {
        ActionEvent.COMMITTED: Phase.VERIFIED,
        ActionEvent.WORKING: Phase.VERIFIED,
        ActionEvent.SILENT: Phase.STOPPING,
        **_ANYWHERE,
    },
    Phase.RETIRING: {
        ActionEvent.GONE: Phase.VERIFIED,
        ActionEvent.WOULD_NOT_STOP: Phase.FAILED,
        **_ANYWHERE,
    },
    Phase.RESUMING: {
        ActionEvent.RESUMED: Phase.ROLLED_BACK,
        ActionEvent.NOT_RESUMED: Phase.STOPPING,
        **_ANYWHERE,
    },
}

HANDOVER_MOVES = {ActionEvent.COMMITTED: Phase.RETIRING, ActionEvent.SILENT: Phase.RESUMING}
"""Where a handover goes from RUNNING: the first driver still waits."""

WAYS = {
    ActionEvent.RESIZABLE: Way.IN_PLACE,
    ActionEvent.REPLACEABLE: Way.HANDOVER,
    ActionEvent.FOUND: Way.RESTART,
    ActionEvent.NOTHING_RUNS: Way.RESTART,
    ActionEvent.FALLS_BACK: Way.RESTART,
    ActionEvent.NOT_RESUMED: Way.RESTART,
}
"""Events that settle the way."""

FAILS_ATTEMPT = frozenset({ActionEvent.NOT_RESIZED, ActionEvent.NOT_SUBMITTED, ActionEvent.SILENT})
"""Events with which an attempt fails: the next one uses the last good size, if there is one and it was not tried."""

NOT_FOR: dict[ActionEvent, frozenset[CommandKind]] = {
    ActionEvent.ANNOUNCED: frozenset({CommandKind.STOP}),
    ActionEvent.DONE: frozenset(CommandKind) - {CommandKind.STOP},
    ActionEvent.WORKING: frozenset(CommandKind) - {CommandKind.START},
    ActionEvent.RESIZABLE: frozenset(CommandKind) - {CommandKind.RESCALE},
    ActionEvent.REPLACEABLE: frozenset(CommandKind) - {CommandKind.RESCALE},
}
"""Events that cannot happen to some kinds of command: a `stop` starts nothing, only a running job is rescaled, and a
rescale can be taken back until its new run has committed."""


def resume(command: ScalingCommand, last_good: int | None, results: Iterable[ActionResult] = ()) -> CommandState:
    """Return the state that a command's results, oldest first, describe."""
    state = CommandState(command.kind, command.to_parallelism, last_good)
    for result in results:
        state = replace(state, phase=result.phase, attempt=result.attempt, way=result.way)
    return state


def next_action(state: CommandState) -> Action:
    """Return what to do now; NOTHING when the command has ended."""
    return ACTIONS.get(state.phase, Action.NOTHING)


def advance(state: CommandState, event: ActionEvent) -> CommandState:
    """Return the state after `event`; raise `IllegalMove` if it cannot happen."""
    phase = MOVES.get(state.phase, {}).get(event)
    if phase is None or state.kind in NOT_FOR.get(event, ()):
        raise IllegalMove(f"{event.name} cannot happen to a {state.kind} in {state.phase}, attempt {state.attempt}")
    if event is ActionEvent.GONE_AFTER_COMMIT and state.attempt != 2:
        raise IllegalMove(f"{event.name} cannot happen in attempt {state.attempt}: nothing was taken back")
    way, attempt = state.way, state.attempt
    if state.kind is CommandKind.RESCALE:
        way = WAYS.get(event, way)
    if state.way is Way.HANDOVER and event in HANDOVER_MOVES:
        phase = HANDOVER_MOVES[event]
    elif event in FAILS_ATTEMPT:
        if attempt > 1 or state.last_good is None:
            phase = Phase.FAILED
        else:
            attempt = 2
    elif event is ActionEvent.GONE_AFTER_COMMIT:
        attempt = 3
    if phase is Phase.RESUMING or event is ActionEvent.NOT_WARM:
        attempt = 2  # the first driver goes on, and it has the last good size
    if phase is Phase.VERIFIED and attempt == 2:
        phase = Phase.ROLLED_BACK
    return replace(state, phase=phase, attempt=attempt, way=way)
