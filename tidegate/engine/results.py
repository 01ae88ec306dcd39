"""Applying results to the state: what became of the commands, which size runs, what the ways to change it have cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate.engine.costs import (
    FELL_BACK,
    ClosedWay,
    MeasuredCost,
    Shortfall,
    note_closed,
    note_cost,
)
from tidegate.engine.history import FAILED, STOPPED, note_outcome, note_restart, take_back
from tidegate.engine.state import InFlight, JobState, Slice
from tidegate.engine.upgrade import take_application
from tidegate.engine.ways import checksum, longest_change_seconds
from tidegate.engine.zero import note_lost, note_result
from tidegate.events.command import CommandKind
from tidegate.events.decision import Observed
from tidegate.events.job import JobSpec
from tidegate.events.result import CHECKPOINT_ELSEWHERE, FIRST_BATCH, GRANTED_FEWER, ActionResult, Phase
from tidegate.events.way import Way

GRACE_SECONDS: Final = 30.0
"""A command that nobody started is forgotten this long after it expired: its acceptance may be on the way."""

LOST_SECONDS: Final = 1800.0
"""A command that has not ended this long after its start, nor in its deadlines, is given up. The next fences it off."""


def take_results(state: JobState, observed: Observed, spec: JobSpec) -> JobState:
    """Return the state after the results seen since the last snapshot, oldest first."""
    for result in observed.results:
        state = _take(state, result, spec)
    command = state.in_flight
    if command is not None:
        now = observed.at.timestamp()
        is_unstarted = command.phase == "ordered"  # until it expires, it may still be started
        if is_unstarted:
            until = command.expires_at + GRACE_SECONDS
        else:
            until = command.expires_at + max(LOST_SECONDS, longest_change_seconds(spec.application))
        if now > until:
            state = _never_begun(state, command) if is_unstarted else state
            state = note_lost(state._replace(in_flight=None), command.kind)
    return state


def _take(state: JobState, result: ActionResult, spec: JobSpec) -> JobState:
    command, at = state.in_flight, result.at.timestamp()
    mine = command is not None and command.command_id == result.command_id
    if not result.phase.terminal:
        if command is not None and mine:
            # A second attempt goes back to the last good size, so that is the size to expect.
            size = result.parallelism if result.attempt > 1 else command.to_parallelism
            started_at = min(command.expires_at, at)
            command = command._replace(phase=result.phase.value, to_parallelism=size, expires_at=started_at)
            return state._replace(in_flight=command)
        if command is None:
            # Ordered by a decider whose state is lost here: the command is under way all the same.
            adopted = InFlight(
                result.command_id, result.kind.value, result.parallelism, at, at, result.phase.value, result.way
            )
            return state._replace(in_flight=adopted)
        return state
    if result.phase is Phase.REJECTED:
        if command is None or not mine:
            return state
        return note_result(_never_begun(state, command)._replace(in_flight=None), result)
    if mine:
        state = note_result(_compare_ways(state, result)._replace(in_flight=None), result)
        if result.kind is CommandKind.RESCALE and not state.outdated:  # else the new application may be what failed
            history = note_outcome(state.history, worked=result.phase is Phase.VERIFIED)
            state = state._replace(history=history)
    state = take_application(state, result, spec)
    if result.phase is Phase.FAILED:
        return _failed(state, result, spec)
    if result.kind is CommandKind.STOP:
        return state._replace(failures=0, window=())
    if result.kind is CommandKind.RESCALE and result.phase is Phase.VERIFIED and result.code != GRANTED_FEWER:
        state = _learn_cost(state, result)
    if result.incarnation is not None and result.incarnation != state.incarnation:
        # A long first batch is part of the run: the job has had that time to settle.
        since = at - (result.delay_seconds or 0.0) if result.code == FIRST_BATCH else at
        state = state._replace(
            incarnation=result.incarnation, run_since=since, window=(), busy_until=0.0, last_batch_id=None
        )
    elif result.way is Way.IN_PLACE:
        # What the old size has shown says nothing about the new one; the counters go on.
        kept = tuple([Slice(piece.at, piece.arrived, piece.committed) for piece in state.window])
        state = state._replace(changes=state.changes._replace(resized_at=at), window=kept)
    # A rollback proves that the last good size still works and the ordered one does not.
    failures = state.failures if result.code == FIRST_BATCH else 0
    state = state._replace(parallelism=result.parallelism, failures=failures)
    return _note_limits(state, result, spec)


def _never_begun(state: JobState, command: InFlight) -> JobState:
    """Return the state after a command that was refused or not taken up: it used up no restart and halted nothing."""
    history = take_back(state.history, command.issued_at)
    if command.kind == CommandKind.STOP.value and history.halt in (STOPPED, FAILED):
        history = replace(history, halt=None)
    return state._replace(history=history)


def _failed(state: JobState, result: ActionResult, spec: JobSpec) -> JobState:
    """Return the state after a command that failed.

    The end of a run is counted when a snapshot shows it, so only a start without a run is counted here.
    """
    # Whatever a failed second attempt left running has the size it went back to.
    left = result.parallelism if result.attempt > 1 and result.parallelism else state.parallelism
    state = state._replace(parallelism=left)
    if result.code == CHECKPOINT_ELSEWHERE:
        state = _note_limits(state, result, spec)
    if state.incarnation is not None:
        return state
    if result.incarnation is not None:
        return state._replace(incarnation=result.incarnation, run_since=result.at.timestamp())
    return state._replace(failures=state.failures + 1)


def _compare_ways(state: JobState, result: ActionResult) -> JobState:
    """Return the state after a command; it has learned if the way that the command named was not possible."""
    ordered, way = state.in_flight, result.way
    if way is None and result.phase is not Phase.FAILED:
        way = Way.RESTART  # an older actuator knows no other way
    if ordered is None or ordered.way is None or way is None or way is ordered.way:
        return state
    at, incarnation = int(result.at.timestamp()), result.incarnation or state.incarnation
    closed = note_closed(state.changes.closed, ClosedWay(ordered.way, FELL_BACK, at, incarnation))
    state = state._replace(changes=state.changes._replace(closed=closed))
    return state._replace(history=note_restart(state.history, at)) if way is Way.RESTART else state


def _learn_cost(state: JobState, result: ActionResult) -> JobState:
    """Return the state with what a change of size has cost.

    The outage of a restart is its downtime, which includes the first batch: a new run is cold, so its first batch lasts
    longer than the records it takes would explain. Older results tell nothing else. A downtime counts from the last
    commit, so it may begin with a silence, which is no outage: a restart without any takes its delay at most.
    """
    restarts = result.way in (Way.RESTART, None) and result.downtime_seconds is not None
    outage = result.downtime_seconds if restarts else result.outage_seconds
    if restarts and outage is not None and result.delay_seconds is not None:
        outage = min(outage, result.delay_seconds)
    if outage is None:
        return state
    delay = outage if result.delay_seconds is None else result.delay_seconds
    at = int(result.at.timestamp())
    new = MeasuredCost(result.way or Way.RESTART, at, round(outage, 2), round(delay, 2))
    return state._replace(changes=state.changes._replace(costs=note_cost(state.changes.costs, new)))


def _note_limits(state: JobState, result: ActionResult, spec: JobSpec) -> JobState:
    """Return the state with what stands in the way of the next change: a checkpoint elsewhere, a pool without slots."""
    at, changes = result.at.timestamp(), state.changes
    if result.code == CHECKPOINT_ELSEWHERE:
        location, closed = checksum(spec.application.checkpoint_location), changes.closed
        for way in (Way.HANDOVER, Way.RESTART):
            closed = note_closed(closed, ClosedWay(way, CHECKPOINT_ELSEWHERE, int(at), state.incarnation, location))
        changes = changes._replace(closed=closed)
    if result.code == GRANTED_FEWER:
        changes = changes._replace(shortfall=Shortfall(at, result.parallelism))
    elif changes.shortfall is not None and result.parallelism > changes.shortfall.granted:
        changes = changes._replace(shortfall=None)
    return state if changes is state.changes else state._replace(changes=changes)
