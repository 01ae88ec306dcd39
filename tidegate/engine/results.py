"""Applying results to the state: what became of the commands, which size runs, how long restarts took."""

from __future__ import annotations

from tidegate.engine.state import InFlight, JobState
from tidegate.events.command import CommandKind
from tidegate.events.decision import Observed
from tidegate.events.result import ActionResult, Phase

GRACE_SECONDS = 30.0
"""A command that nobody started is forgotten this long after it expired: its acceptance may be on the way."""

LOST_SECONDS = 1800.0
"""A command that started and has not ended after this is given up; the next one fences it off."""

RESTARTS_KEPT = 8


def take_results(state: JobState, observed: Observed) -> JobState:
    """Return the state after the results seen since the last snapshot, oldest first."""
    for result in observed.results:
        state = _take(state, result)
    command = state.in_flight
    if command is not None:
        now = observed.at.timestamp()
        unstarted = command.phase == "ordered" and now > command.expires_at + GRACE_SECONDS
        if unstarted or now > command.issued_at + LOST_SECONDS:
            state = state._replace(in_flight=None)
    return state


def _take(state: JobState, result: ActionResult) -> JobState:
    mine = state.in_flight is not None and state.in_flight.command_id == result.command_id
    at = result.at.timestamp()
    if not result.phase.terminal:
        if state.in_flight is not None and mine:
            # A second attempt goes back to the last good size, so that is the size to expect.
            size = result.parallelism if result.attempt > 1 else state.in_flight.to_parallelism
            return state._replace(in_flight=state.in_flight._replace(phase=result.phase.value, to_parallelism=size))
        if state.in_flight is None:
            # Ordered by a decider whose state is lost here: the command is under way all the same.
            adopted = InFlight(result.command_id, result.kind.value, result.parallelism, at, at, result.phase.value)
            return state._replace(in_flight=adopted)
        return state
    if mine:
        state = state._replace(in_flight=None)
    if result.phase is Phase.FAILED:
        # Whatever a failed second attempt left running has the size it went back to.
        left = result.parallelism if result.attempt > 1 and result.parallelism else state.parallelism
        return state._replace(failures=state.failures + 1, parallelism=left)
    if result.phase is Phase.REJECTED:
        return state
    if result.kind is CommandKind.STOP:
        return state._replace(failures=0, window=())
    if result.downtime_seconds is not None and result.kind is CommandKind.RESCALE:
        state = state._replace(restarts=(*state.restarts, (at, result.downtime_seconds))[-RESTARTS_KEPT:])
    if result.incarnation is not None and result.incarnation != state.incarnation:
        state = state._replace(
            incarnation=result.incarnation, run_since=at, window=(), busy_until=0.0, last_batch_id=None
        )
    # A rollback proves that the last good size still works and the ordered one does not.
    return state._replace(parallelism=result.parallelism, failures=0)
