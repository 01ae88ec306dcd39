from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.actuator.restart import (
    ACTIONS,
    Action,
    IllegalMove,
    RestartEvent,
    RestartState,
    advance,
    next_action,
    resume,
)
from tests.support.command_log import command_log
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import TERMINAL, ActionResult, Phase, result_id

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KINDS = st.sampled_from(CommandKind)
LAST_GOOD = st.one_of(st.none(), st.integers(1, 16))
EVENTS = st.lists(st.sampled_from(RestartEvent), max_size=60)


def _command(kind: CommandKind) -> ScalingCommand:
    return ScalingCommand(
        command_id="c",
        job_id="j",
        pipeline_id="j",
        snapshot_id="s",
        spec_version=1,
        kind=kind,
        from_parallelism=2,
        to_parallelism=0 if kind is CommandKind.STOP else 5,
        epoch=7,
        issued_at=NOW,
        expires_at=NOW + timedelta(minutes=2),
        reason="r",
    )


def _walk(kind: CommandKind, last_good: int | None, events: list[RestartEvent]) -> list[RestartState]:
    """Return the states that the events lead through; an illegal event must change nothing and is skipped."""
    states = [resume(_command(kind), last_good)]
    for event in events:
        before = states[-1]
        try:
            states.append(advance(before, event))
        except IllegalMove:
            assert states[-1] == before
    return states


def _result(state: RestartState) -> ActionResult:
    assert state.phase is not None
    return ActionResult(
        result_id=result_id("c", state.phase, state.attempt),
        command_id="c",
        job_id="j",
        pipeline_id="j",
        kind=state.kind,
        phase=state.phase,
        attempt=state.attempt,
        epoch=7,
        at=NOW,
        parallelism=state.parallelism,
    )


@given(KINDS, LAST_GOOD, EVENTS)
def test_starting_comes_only_from_stopped(kind: CommandKind, last_good: int | None, events: list[RestartEvent]) -> None:
    """In any order of events, a start comes only after STOPPED: never two writers (I4)."""
    for before, after in pairwise(_walk(kind, last_good, events)):
        if after.phase is Phase.STARTING:
            assert before.phase is Phase.STOPPED
        if after.phase is Phase.RUNNING:
            assert before.phase is Phase.STARTING


@given(KINDS, LAST_GOOD, EVENTS)
def test_a_size_is_started_once_and_rolled_back_once(
    kind: CommandKind, last_good: int | None, events: list[RestartEvent]
) -> None:
    """A command starts its own size at most once, and after that the last good size at most once (I3)."""
    sizes = [state.parallelism for state in _walk(kind, last_good, events) if state.phase is Phase.STARTING]
    assert sizes in ([], [5], [5, last_good])
    assert not (kind is CommandKind.STOP and sizes)


@given(KINDS, LAST_GOOD, EVENTS)
def test_an_end_is_an_end(kind: CommandKind, last_good: int | None, events: list[RestartEvent]) -> None:
    """After a terminal phase there is no action and no legal event; before it there is always an action (I2)."""
    for state in _walk(kind, last_good, events):
        if state.phase in TERMINAL:
            assert next_action(state) is Action.NOTHING
            for event in RestartEvent:
                with pytest.raises(IllegalMove):
                    advance(state, event)
        else:
            assert next_action(state) is not Action.NOTHING


@given(KINDS, LAST_GOOD, EVENTS)
def test_results_describe_the_state(kind: CommandKind, last_good: int | None, events: list[RestartEvent]) -> None:
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
    """Every path of legal events ends after at most eleven steps."""
    frontier = {resume(_command(kind), last_good)}
    for _ in range(11):
        frontier = {after for state in frontier for event in RestartEvent if (after := _try(state, event)) is not None}
    assert not frontier


def _try(state: RestartState, event: RestartEvent) -> RestartState | None:
    try:
        return advance(state, event)
    except IllegalMove:
        return None


def test_every_phase_has_an_action_or_is_an_end() -> None:
    """Every phase either has an action or ends the command."""
    assert {phase for phase in ACTIONS if phase} | TERMINAL == set(Phase)
