from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.actuator.machine import (
    ACTIONS,
    Action,
    ActionEvent,
    CommandState,
    IllegalMove,
    advance,
    next_action,
    resume,
)
from tests.support.command_log import command_log
from tests.support.events import command, result
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import SUCCESSIONS, TERMINAL, ActionResult, Phase
from tidegate.events.way import Way

KINDS = st.sampled_from(CommandKind)
LAST_GOOD = st.one_of(st.none(), st.integers(1, 16))
EVENTS = st.lists(st.sampled_from(ActionEvent), max_size=60)


def _command(kind: CommandKind) -> ScalingCommand:
    return command(kind, to=0 if kind is CommandKind.STOP else 5)


def _walk(kind: CommandKind, last_good: int | None, events: list[ActionEvent]) -> list[CommandState]:
    """Return the states that the events lead through; an illegal event must change nothing and is skipped."""
    states = [resume(_command(kind), last_good)]
    for event in events:
        before = states[-1]
        try:
            states.append(advance(before, event))
        except IllegalMove:
            assert states[-1] == before
    return states


def _result(state: CommandState) -> ActionResult:
    assert state.phase is not None
    return result(
        "c",
        state.phase,
        kind=state.kind,
        attempt=state.attempt,
        epoch=7,
        parallelism=state.parallelism,
        way=state.way,
    )


@given(KINDS, LAST_GOOD, EVENTS)
def test_starting_comes_only_from_stopped(kind: CommandKind, last_good: int | None, events: list[ActionEvent]) -> None:
    """In any order of events, a writer comes only after STOPPED, or after the switch of a handover (I4)."""
    for before, after in pairwise(_walk(kind, last_good, events)):
        if after.phase is Phase.STARTING:
            assert before.phase is Phase.STOPPED
        if after.phase is Phase.RUNNING:
            assert before.phase is (Phase.SWITCHING if after.way is Way.HANDOVER else Phase.STARTING)
        if before.phase is Phase.SWITCHING and after.phase not in (Phase.RUNNING, *TERMINAL):
            assert after.phase is Phase.RESUMING  # the first driver may have paused


@given(KINDS, LAST_GOOD, EVENTS)
def test_a_size_is_started_once_and_rolled_back_once(
    kind: CommandKind, last_good: int | None, events: list[ActionEvent]
) -> None:
    """A command starts its own size once, then the last good size once, then its own if that has proved itself (I3)."""
    states = _walk(kind, last_good, events)
    attempts = [state.attempt for state in states if state.phase is Phase.STARTING]
    assert attempts == sorted(set(attempts))
    for state in states:
        back = (last_good or state.target) if state.attempt == 2 else state.target
        assert state.parallelism == back
    if 3 in attempts:
        assert any(state.phase is Phase.STOPPED and state.attempt == 3 for state in states)
        assert any(state.attempt == 2 for state in states), "nothing had been taken back"
    assert not (kind is CommandKind.STOP and attempts)


@given(KINDS, LAST_GOOD, EVENTS)
def test_an_end_is_an_end(kind: CommandKind, last_good: int | None, events: list[ActionEvent]) -> None:
    """After a terminal phase there is no action and no legal event; before it there is always an action (I2)."""
    for state in _walk(kind, last_good, events):
        if state.phase in TERMINAL:
            assert next_action(state) is Action.NOTHING
            for event in ActionEvent:
                with pytest.raises(IllegalMove):
                    advance(state, event)
        else:
            assert next_action(state) is not Action.NOTHING


@given(KINDS, LAST_GOOD, EVENTS)
def test_results_describe_the_state(kind: CommandKind, last_good: int | None, events: list[ActionEvent]) -> None:
    """At any point a successor gets to the same state from the results alone, even if it reads some twice."""
    states = _walk(kind, last_good, events)
    told = [_result(state) for state in states[1:]]
    log = command_log([*told, *told[: len(told) // 2]])
    if not log.ended("c"):
        assert resume(_command(kind), last_good, log.results("c")) == states[-1]
    assert len({result.result_id for result in told}) == len(told), "two phases share a result id"
    assert log.ended("c") == (states[-1].phase in TERMINAL)


@given(KINDS, LAST_GOOD)
def test_every_path_ends(kind: CommandKind, last_good: int | None) -> None:
    """Every path of legal events ends after at most eighteen steps."""
    frontier = {resume(_command(kind), last_good)}
    for _ in range(18):
        frontier = {after for state in frontier for event in ActionEvent if (after := _try(state, event)) is not None}
    assert not frontier


@given(KINDS, LAST_GOOD, EVENTS)
def test_only_a_start_ends_without_a_commit(
    kind: CommandKind, last_good: int | None, events: list[ActionEvent]
) -> None:
    """A rescale whose new run has not committed goes back, however much of its first batch is done."""
    for state in _walk(kind, last_good, events):
        if state.phase is Phase.RUNNING and kind is not CommandKind.START:
            assert _try(state, ActionEvent.WORKING) is None
            silent = _try(state, ActionEvent.SILENT)
            assert silent is not None
            assert silent.attempt == 2 or last_good is None or state.attempt > 1


def _try(state: CommandState, event: ActionEvent) -> CommandState | None:
    try:
        return advance(state, event)
    except IllegalMove:
        return None


def test_every_phase_has_an_action_or_is_an_end() -> None:
    """Every phase either has an action or ends the command."""
    assert {phase for phase in ACTIONS if phase} | TERMINAL == set(Phase)


def test_the_published_successions_are_those_of_the_machine() -> None:
    """The table by which an audit judges results allows exactly what the machine can do, no more and no less."""
    frontier = {resume(_command(kind), good) for kind in CommandKind for good in (None, 3)}
    found: dict[Phase | None, set[Phase]] = {}
    while frontier:
        moves = [(state, after) for state in frontier for event in ActionEvent if (after := _try(state, event))]
        for state, after in moves:
            assert after.phase is not None
            found.setdefault(state.phase, set()).add(after.phase)
        frontier = {after for _, after in moves}
    assert found == SUCCESSIONS
